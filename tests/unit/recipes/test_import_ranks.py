"""Several files start the ranks of one engine: one recipe, with the losses of each."""

import json
import os
from pathlib import Path

import pytest
from tests.unit.started_engines import COMPOSE, IMAGE, LINE, UNIT, imported

from sparkd.base.lib.errors import ConfigError
from sparkd.base.recipes.schema import Nodes
from sparkd.tools.importers.bundle import Place
from sparkd.tools.importers.convert import Conversion, import_forms
from sparkd.tools.importers.forms import read_form


def test_ranks_that_differ_in_more_than_their_place_are_refused(tmp_path: Path) -> None:
    fault = "1/given: line 2: --seed: 1 in .*0/given, 2 in .*1/given: ranks of one engine"
    with pytest.raises(ConfigError, match=fault):
        imported(tmp_path, f"{LINE} --seed 1", f"\n{LINE} --seed 2", f"{LINE} --seed 1")


def test_as_many_files_as_nodes_give_that_number_of_nodes(tmp_path: Path) -> None:
    recipe = imported(tmp_path, f"{LINE} -tp 2 --node-rank 0", f"{LINE} -tp 2 --node-rank 1 --headless").recipe
    assert recipe.nodes == Nodes(min=2, max=2)


def test_json_in_another_notation_is_no_difference(tmp_path: Path) -> None:
    texts = [f"{LINE} -tp 2 --speculative-config '{value}'" for value in ('{"a": 1, "b":[2]}', '{"b":[2],"a":1}')]
    assert json.loads(str(imported(tmp_path, *texts).recipe.args["speculative-config"])) == {"a": 1, "b": [2]}
    with pytest.raises(ConfigError, match=r"--speculative-config: .* ranks of one engine need the same"):
        imported(tmp_path, texts[0], texts[1].replace("2]", "3]"))


def import_named(folder: Path, **texts: str) -> Conversion:
    """Import texts as files of these names."""
    forms = [read_form(text, folder / name, {}, owner=os.getuid()) for name, text in texts.items()]
    return import_forms([form for form in forms if form], (), Place())


def test_a_loss_of_a_unit_beside_the_script_that_it_runs_is_named_with_its_file(tmp_path: Path) -> None:
    unit = f"{UNIT}EnvironmentFile=/etc/x.env\nExecStart=/x.sh\n"
    for files in ({"unit": unit, "script": LINE}, {"script": LINE, "unit": unit}):
        (note,) = import_named(tmp_path, **files).notes
        assert note.startswith(f"{tmp_path}/unit: line 4: EnvironmentFile=/etc/x.env: not read")


def test_a_loss_of_any_file_is_named_with_its_file_and_counts(tmp_path: Path) -> None:
    head, worker = f"{LINE} -tp 2 --node-rank 0\n", f"\n{LINE} -tp 2 --node-rank 1 --headless $EXTRA\n"
    worker = worker.replace("--gpus all", "-v named:/t --user 1000 --gpus all")
    for files in ({"head": head, "worker": worker}, {"worker": worker, "head": head}):
        conversion = import_named(tmp_path, **files)
        assert [note.partition(": left out")[0] for note in conversion.notes] == [
            f"{tmp_path}/worker: line 2{loss}" for loss in ("", ": --volume named:/t", ": --user 1000")
        ]
        assert conversion.missing == conversion.notes[:1]
        assert f"# Imported from {', '.join(files)} (command line).\n" in conversion.text
        assert f"#   {tmp_path}/worker: line 2: --user 1000: left out" in conversion.text


def test_what_one_rank_alone_runs_before_the_engine_is_missing(tmp_path: Path) -> None:
    setup = f"docker run {IMAGE} bash -c 'pip install y && vllm serve org/m -tp 2'"
    assert imported(tmp_path, f"{LINE} -tp 2", setup).missing == [
        "line 1: not run: pip install y: do it in an image, and name that under image.ref"
    ]


def test_a_loss_that_several_files_have_is_named_once_with_the_file_of_its_line(tmp_path: Path) -> None:
    run = f"docker run -d -e MASTER_ADDR=10.0.0.1 --user 1000 --name v {IMAGE} sleep infinity\n"
    serve = "\n\nexport VLLM_HOST_IP=10.0.0.{}\nvllm serve org/m -tp 2 --node-rank {}\n"
    result = import_named(tmp_path, run=run, head=serve.format(1, 0), worker=serve.format(2, 1))
    assert [note.removeprefix(f"{tmp_path}/").partition(": left out")[0] for note in result.notes] == [
        "head: line 4: VLLM_HOST_IP", "run: line 1: MASTER_ADDR", "run: line 1: --user 1000",
    ]  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_address_of_one_node_is_left_out_with_its_own_line(tmp_path: Path, ranks: int) -> None:
    command = COMPOSE.replace("org/m", f"org/m -tp {ranks}")
    result = imported(tmp_path, f"{command}    environment:\n      A: b\n      UCX_TCP_X: 10.0.0.1\n")
    assert result.notes == ["line 7: UCX_TCP_X: left out: sparkd sets what a node's rank needs"]
    assert result.recipe.env == {"A": "b"}


def test_an_address_that_each_rank_has_is_named_with_the_line_of_the_first(tmp_path: Path) -> None:
    head, worker = (f"{LINE} -tp 2 --node-rank {n}\n".replace("--gpus", f"-e GLOO_X=10.0.0.{n} --gpus") for n in (1, 2))
    notes = imported(tmp_path, head, f"\n{worker}").notes
    assert notes == ["line 1: GLOO_X: left out: sparkd sets what a node's rank needs"]
