"""`sparkd recipe import`: standard input, files and folders, and what is written of them."""

import io
from pathlib import Path

import pytest
from tests.unit.commands import sparkd, stdin_of
from tests.unit.started_engines import IMAGE, LINE

from sparkd.base.recipes.loader import load_recipe
from sparkd.tools.importers.bundle import Place
from sparkd.tools.importers.convert import import_text

OTHER_TOOLS = f"recipe_version: '2'\nmodel: o/m\ncontainer: {IMAGE}\n"


def test_standard_input_is_imported_and_written(tmp_path: Path) -> None:
    with stdin_of(io.StringIO(f"{LINE}\n")):
        assert sparkd("recipe", "import", "-", "--write", str(tmp_path)).returncode == 0
    assert load_recipe(str(tmp_path / "m.yaml"), []).recipe.model.repo == "org/m"


def test_every_served_name_is_kept(tmp_path: Path) -> None:
    with stdin_of(io.StringIO(f"{LINE} --served-model-name m gpt-4o '' org/m\n")):
        done = sparkd("recipe", "import", "-", "--write", str(tmp_path))
    model = load_recipe(str(tmp_path / "m.yaml"), []).recipe.model
    assert (model.served_name, model.aliases) == ("m", ("gpt-4o", "org/m"))
    assert "served-model-name" not in done.stdout


def test_a_text_that_is_cut_off_is_refused() -> None:
    with stdin_of(io.StringIO(f"{LINE} " + "#" * (1 << 20))):
        refused = sparkd("recipe", "import", "-")
    assert refused.returncode == 78
    assert "standard input: is larger" in refused.stderr


def test_files_of_the_node_are_missing_where_vllm_ran_in_no_container() -> None:
    drafts = """--speculative-config '{"method":"eagle3","model":"/d","num_speculative_tokens":3}'"""
    files = f"--chat-template /srv/t.jinja --tool-parser-plugin /srv/m/p.py --lora-modules a=/a b=org/b {drafts}"
    inline = "--chat-template '{% if x %} /no_think {% endif %}' --generation-config /srv/g"
    for command, missing in {
        f"vllm serve /srv/m {files} --root-path /x": ["/a", "/d", "/srv/t.jinja"],
        f"vllm serve /srv/m {inline}": ["/srv/g"],
        f"docker exec c vllm serve /srv/m {files}": [],
        f"docker run {IMAGE} vllm serve /srv/m {files}": [],
    }.items():
        with stdin_of(io.StringIO(command)):
            lines = sparkd("recipe", "import", "-", "--image", IMAGE).stdout.splitlines()
        assert sorted(line.split()[4] for line in lines if "is the node's" in line) == missing


def test_a_vllm_that_is_started_without_an_image_needs_one(tmp_path: Path) -> None:
    path = tmp_path / "bare.sh"
    path.write_text("vllm serve org/bare --seed 1\n")
    assert sparkd("recipe", "import", str(path)).returncode == 78
    done = sparkd("recipe", "import", str(path), "--image", IMAGE)
    assert done.returncode == 0
    assert f"ref: {IMAGE}" in done.stdout


def test_nothing_to_import_and_an_image_for_a_recipe_that_has_one_are_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(OTHER_TOOLS)
    assert sparkd("recipe", "import").returncode == 2
    assert sparkd("recipe", "import", str(tmp_path / "other.yaml"), "--image", "r/i:1").returncode == 2


def test_a_file_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    (tmp_path / "given").write_text(LINE)
    done = sparkd("recipe", "import", str(tmp_path / "given"), f"{tmp_path}/./given")
    assert done.returncode == 0
    assert done.stdout.startswith("# Imported from given (command line).\n")


@pytest.mark.parametrize("words", [("--service", "engine"), ("--image", IMAGE)], ids=" ".join)
def test_options_of_one_file_are_refused_for_a_folder_before_anything_is_written(
    tmp_path: Path, words: tuple[str, str]
) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    out.mkdir()
    (source / "a.yaml").write_text(f"services:\n  engine:\n    image: {IMAGE}\n    command: vllm serve org/m\n")
    (source / "b.yaml").write_text(OTHER_TOOLS)
    refused = sparkd("recipe", "import", str(source), *words, "--write", str(out))
    assert refused.returncode == 2
    assert "name that file" in refused.stderr
    assert not list(out.iterdir())


def test_a_commented_step_is_the_step_itself(tmp_path: Path) -> None:
    result = import_text(LINE, tmp_path / "given", {}, (), Place(Path("/srv/two  blanks")), None)
    assert all(f". {step}\n" in result.text for step in result.steps)
