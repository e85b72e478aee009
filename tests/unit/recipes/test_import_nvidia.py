"""Recipes of NVIDIA's catalogue: words, image by digest, model by revision, figures, and what is noted."""

import re
from hashlib import sha256
from pathlib import Path

import pytest

from sparkd.base.lib.errors import ConfigError
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.schema import Limit, Model, Nodes, Recipe
from sparkd.tools.importers import convert

DIGEST, REVISION = "sha256:" + "2c" * 32, "60d8" * 10
PAIR = """\
schema_version: 3
title: M on two
model: o/m
hardware: dgx-spark-2gpu
backend: vllm
validation: {validated_at: 2026-08-31, tested_stack: {driver: "580.159.03", cuda: "13.0"}}
topology: {gpu_count: 2, node_count: 2, tensor_parallel_size: 2}
security: for evaluation
runtime:
  image: r/i:latest
  setup_command: |
    # ETH_IF="x"
    export HEAD_IP="<head>"
    export ETH_IF="<port>"
    export MASTER_PORT=29501
    export IMAGE="r/i:latest"
    mkdir -p "$HOME/.cache/vllm"

    docker run --rm -it \\
      --privileged \\
      --gpus all --ipc host --network host \\
      --shm-size=16g \\
      --ulimit nofile=1048576:1048576 \\
      --ulimit stack=67108864 \\
      -e HF_TOKEN=$HF_TOKEN \\
      -e MN_IF_NAME="$ETH_IF" \\
      -e NCCL_IB_HCA="$IB_IF" \\
      -e NCCL_IB_DISABLE=0 \\
      -e HEAD_IP="$HEAD_IP" -e MASTER_PORT="$MASTER_PORT" \\
      -v "$HOME/.cache/vllm:/root/.cache/vllm" \\
      -v ~/.triton:/root/.triton \\
      --entrypoint /bin/bash \\
      "$IMAGE"
serve:
  target: head
  command: |
    export A="1"

    vllm serve o/M \\
      --host 0.0.0.0 \\
      --speculative-config '{"method":"mtp","num_speculative_tokens":2}' \\
      --tensor-parallel-size 2 \\
      --nnodes 2 \\
      --node-rank 0 \\
      --master-addr "$HEAD_IP" \\
      --master-port "$MASTER_PORT"
"""
MEASURED = f"""\
schema_version: 1
software: {{model_revision: {REVISION}, runtime_revision: "{DIGEST}"}}
profiles:
  - workload: {{concurrency: 1}}
    results: {{prefill_tokens_per_second_mean: 2077.61, decode_tokens_per_second_mean: 35.96, e2e_latency_ms_mean: 1.5}}
"""


def imported(folder: Path, text: str, measured: str = "", **overrides: str) -> tuple[Recipe, convert.Conversion]:
    (folder / "recipe.yaml").write_text(text)
    if measured:
        (folder / "performance.yaml").write_text(measured)
    result = convert.import_file(folder / "recipe.yaml", overrides)
    (folder / "written.yaml").write_text(result.text)
    return load_recipe(str(folder / "written.yaml"), []).recipe, result


def test_a_measured_recipe_is_imported_with_what_it_was_measured_with(tmp_path: Path) -> None:
    recipe, conversion = imported(tmp_path, PAIR, MEASURED)
    assert recipe.args == {
        "host": "0.0.0.0",
        "speculative-config": '{"method":"mtp","num_speculative_tokens":2}',
        "tensor-parallel-size": 2,
    }
    assert recipe.image.ref == f"r/i@{DIGEST}"
    assert recipe.model == Model(path="M", repo="o/M", revision=REVISION, served_name="o/M")
    assert recipe.env == {"A": "1", "NCCL_IB_DISABLE": "0"}
    assert recipe.expect == {"decode_tokens_per_second": {"1": 35.96}, "prefill_tokens_per_second": {"1": 2077.61}}
    container = recipe.container
    assert container.privileged
    assert container.ipc == "host"
    assert container.shm_bytes == 16 << 30
    assert container.ulimits["nofile"] == Limit(soft=1 << 20, hard=1 << 20)
    assert container.ulimits["stack"] == Limit(soft=1 << 26, hard=1 << 26)
    assert container.volumes == ()
    assert recipe.nodes == Nodes(min=2, max=2)
    assert conversion.name == "m-dgx-spark-2gpu"
    assert conversion.missing == ()
    assert [note.partition(": line ")[2].partition(": ")[2] for note in conversion.notes] == [
        "validation: validated_at 2026-08-31, driver 580.159.03, cuda 13.0",
        "security: for evaluation",
        "runtime.setup_command: HF_TOKEN: its value is not taken: put it into /etc/sparkd/hf_token",
        "runtime.setup_command: MN_IF_NAME: left out: a value of the shell's",
        "runtime.setup_command: HEAD_IP: left out: a value of the shell's",
        "runtime.setup_command: MASTER_PORT: left out: a value of the shell's",
    ]


def test_a_cache_that_sparkd_does_not_know_is_kept_and_what_may_surprise_is_noted(tmp_path: Path) -> None:
    own = PAIR.replace("docker run", "docker run -v $HOME/.cache/mine:/root/.cache/mine")
    own = own.replace('"$IMAGE"\n', "r/i:older\n").replace("security:", "min_vidmem_gb: 128\nsecurity:")
    recipe, result = imported(tmp_path, own, MEASURED)
    assert recipe.caches == {"mine": "/root/.cache/mine"}
    assert recipe.image.ref == f"r/i@{DIGEST}"
    assert result.missing == ()
    notes = " ".join(result.notes)
    assert "min_vidmem_gb: 128" in notes
    assert "runtime.image: r/i:latest: is taken, and not r/i:older of its setup_command" in notes


UNCONFINED = "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined"


UNPRIVILEGED = PAIR.replace("docker run", UNCONFINED).replace("      --privileged \\\n", "")


@pytest.mark.parametrize("run", ["docker run", "docker run --privileged=false"])
def test_without_privileges_the_profiles_that_stay_are_noted_with_what_fails_by_them(tmp_path: Path, run: str) -> None:
    _, conversion = imported(tmp_path, UNPRIVILEGED.replace("docker run", run), MEASURED)
    seccomp, apparmor = (note for note in conversion.notes if "unconfined: left out: " in note)
    assert "docker's own seccomp profile stays, and what needs io_uring fails" in seccomp
    assert "VLLM_PLE_TABLE_MEMORY=disk" in seccomp
    assert apparmor.endswith("docker's own AppArmor profile stays; container.privileged has none")
    assert conversion.missing == ()


@pytest.mark.parametrize(
    "disk",
    [
        UNPRIVILEGED.replace('A="1"', 'VLLM_PLE_TABLE_MEMORY="disk"'),
        UNPRIVILEGED.replace("-e HF_TOKEN", "-e VLLM_PLE_TABLE_MEMORY=disk -e HF_TOKEN"),
    ],
)
def test_a_table_on_disk_needs_the_privileges_that_no_profile_of_seccomp_takes(tmp_path: Path, disk: str) -> None:
    (missing,) = imported(tmp_path, disk)[1].missing
    assert "VLLM_PLE_TABLE_MEMORY=disk: needs io_uring" in missing
    assert imported(tmp_path, disk.replace("=disk", "=ram").replace('"disk"', '"ram"'))[1].missing == ()
    assert imported(tmp_path, disk.replace("docker run", "docker run --privileged"))[1].missing == ()


def test_what_a_privileged_container_has_anyway_is_not_noted(tmp_path: Path) -> None:
    texts = [imported(tmp_path, PAIR.replace("docker run", run))[1].text for run in ("docker run", UNCONFINED)]
    assert texts[0] == texts[1]


def test_the_hub_token_of_a_set_up_becomes_a_secret_with_the_steps_for_its_file(tmp_path: Path) -> None:
    recipe, result = imported(tmp_path, PAIR)
    assert recipe.secrets == {"HF_TOKEN": "/etc/sparkd/hf_token"}
    assert any("install -m 600 /dev/stdin /etc/sparkd/hf_token" in step for step in result.steps)
    assert any("model pull" in step and "--token-file /etc/sparkd/hf_token" in step for step in result.steps)


@pytest.mark.parametrize("value", ["s3cretS3cret", "$LANGFUSE_SECRET_KEY"])
def test_a_secret_of_any_name_is_noted_at_the_set_up_and_is_in_no_flag(tmp_path: Path, value: str) -> None:
    text = PAIR.replace("-e HF_TOKEN", f'-e LANGFUSE_SECRET_KEY="{value}" -e HF_TOKEN')
    text = text.replace("--nnodes 2", "--nnodes 2 --foo $LANGFUSE_SECRET_KEY")
    recipe, conversion = imported(tmp_path, text)
    assert recipe.secrets.keys() == {"HF_TOKEN", "LANGFUSE_SECRET_KEY"}
    lines = [note.partition(": ")[2].split(":")[0] for note in conversion.notes if "put it into" in note]
    assert lines == [f"line {1 + text.partition('runtime:')[0].count(chr(10))}"] * 2
    assert "foo" not in recipe.args
    assert "s3cret" not in conversion.text


def test_a_variable_without_a_value_is_one_of_the_shell(tmp_path: Path) -> None:
    recipe, result = imported(tmp_path, PAIR.replace("-e HF_TOKEN=$HF_TOKEN", "-e HF_TOKEN -e MODE"))
    assert (recipe.env, [*recipe.secrets]) == ({"A": "1", "NCCL_IB_DISABLE": "0"}, ["HF_TOKEN"])
    assert any("MODE: left out: a value of the shell's" in note for note in result.notes)


@pytest.mark.parametrize("name", ["my-secret", "my-api_TOKEN"])
def test_a_secret_whose_name_is_no_variable_is_left_out(tmp_path: Path, name: str) -> None:
    recipe, result = imported(tmp_path, PAIR.replace("-e HF_TOKEN", f'-e "{name}=$X" -e HF_TOKEN'))
    assert recipe.secrets == {"HF_TOKEN": "/etc/sparkd/hf_token"}
    assert any(f"{name}: left out: a value of the shell's" in note for note in result.notes)


def test_an_address_of_one_node_is_left_out_with_the_line_of_the_set_up(tmp_path: Path) -> None:
    recipe, result = imported(tmp_path, PAIR.replace("-e NCCL_IB_DISABLE=0", "-e NCCL_X=10.0.0.1:3"))
    line = 1 + PAIR.partition("runtime:")[0].count("\n")
    text = f"line {line}: runtime.setup_command: NCCL_X: left out: sparkd sets what a node's rank needs"
    assert text in [note.partition(": ")[2] for note in result.notes]
    assert "NCCL_X" not in recipe.env


def with_worker(command: str) -> str:
    indented = "".join(f"        {line}\n" for line in command.splitlines())
    return f"{PAIR}  additional_commands:\n  - id: worker\n    command: |\n{indented}"


COMMAND = PAIR.rpartition("  command: |\n")[2].replace("    ", "")


def test_what_a_worker_has_otherwise_than_its_head_is_noted_by_name(tmp_path: Path) -> None:
    other = COMMAND.replace("--tensor", "--max-num-seqs 4 --tensor").replace('A="1"', 'A="2"\nexport B=3')
    _, result = imported(tmp_path, with_worker(f"{other.rstrip()} --headless"))
    where = "serve.additional_commands: "
    noted = [f"{where}{note.partition(where)[2]}" for note in result.notes if where in note]
    assert noted == [
        f"{where}A: 1 for the head, 2 for the others: every rank gets the head's",
        f"{where}--max-num-seqs: not given for the head, 4 for the others: every rank gets the head's",
        f"{where}B: not given for the head, 3 for the others: every rank gets the head's",
    ]


def test_a_worker_that_differs_in_rank_and_address_alone_is_not_noted(tmp_path: Path) -> None:
    worker = COMMAND.replace("--node-rank 0", "--node-rank $NODE_RANK").replace("$HEAD_IP", "10.0.0.1")
    texts = [imported(tmp_path, text)[1].text for text in (PAIR, with_worker(f"{worker.rstrip()} --headless"))]
    assert texts[0] == texts[1]


def test_what_is_lost_of_a_worker_alone_is_noted_as_of_the_head(tmp_path: Path) -> None:
    lost = COMMAND.replace("--tensor", "--max-num-seqs $SEQS --tensor").replace('A="1"', 'A="1"\npip install y')
    head = PAIR.replace("--tensor", "--max-num-seqs 4 --tensor")
    _, conversion = imported(tmp_path, with_worker(f"{lost.rstrip()} --headless $EXTRA").replace(PAIR, head))
    assert [
        line.partition(".additional_commands: ")[2].partition(" is not known")[0] for line in conversion.missing
    ] == [
        "not run: pip install y: do it in an image, and name that under image.ref",
        "left out: what $EXTRA stands for in $EXTRA",
        "--max-num-seqs: left out: what $SEQS stands for in $SEQS",
    ]
    assert not any("not given for the others" in note for note in conversion.notes)


def test_a_secret_that_a_worker_alone_has_is_named_without_a_file(tmp_path: Path) -> None:
    recipe, result = imported(tmp_path, with_worker(f"export B_TOKEN=x\n{COMMAND}"))
    assert any(note.endswith(": B_TOKEN: its value is not taken") for note in result.notes)
    assert "B_TOKEN" not in recipe.secrets


def test_further_commands_are_bounded_and_each_line_is_printed_once(tmp_path: Path) -> None:
    ranked = "".join(f"  - {{command: vllm serve o/M --seed 4 --node-rank {n}}}\n" for n in range(1, 4))
    _, conversion = imported(tmp_path, f"{PAIR}  additional_commands:\n{ranked}")
    assert sum("--seed: not given for the head, 4 for the others" in note for note in conversion.notes) == 1
    distinct = "".join(f"  - {{command: vllm serve o/M --seed {n}}}\n" for n in range(70))
    _, conversion = imported(tmp_path, f"{PAIR}  additional_commands:\n{distinct}")
    assert sum("--seed: not given for the head" in note for note in conversion.notes) == 64
    assert any("6 of 70 are not compared" in note for note in conversion.notes)


def test_the_name_of_a_model_is_cut_and_holds_no_secret(tmp_path: Path) -> None:
    token = "hf_" + "a1B2" * 10
    text = f"{PAIR}checkpoint: {{target_label: {'m' * 9999}, draft_label: {token}}}\n"
    notes = [note for note in imported(tmp_path, text)[1].notes if "checkpoint: " in note]
    assert len(notes) == 2
    assert all(len(note) < 400 and token not in note for note in notes)


def test_a_further_command_that_is_no_engine_is_noted(tmp_path: Path) -> None:
    _, result = imported(tmp_path, with_worker("echo ready"))
    assert any("additional_commands: not compared: runs no `vllm serve`" in note for note in result.notes)


@pytest.mark.parametrize(
    ("tag", "backend_version", "release"),
    [
        ("vllm/vllm-openai:v0.24.0-ubuntu2404", "0.28.0", "0.24"),
        ("r/i:latest", "0.28.0", "0.28"),
        ("vllm/vllm-openai:v0.33.0", "0.24.0", "0.33"),
        ("r/i:latest", "0.28.1rc1.dev337+g2", ""),
        (f"r/i@sha256:{'a' * 64}", "0.28.0", "0.28"),
        ("host:5000/r/i", "0.28.0", "0.28"),
        ("host:5000/r/i:v1", "0.28.0", "0.28"),
    ],
)
def test_a_digest_keeps_the_release_that_the_tag_or_the_measurement_names(
    tmp_path: Path, tag: str, backend_version: str, release: str
) -> None:
    measured = MEASURED.replace("software: {", f'software: {{backend_version: "{backend_version}", ')
    recipe, _ = imported(tmp_path, PAIR.replace("r/i:latest", tag), measured)
    repository = re.split(r"@|:(?!.*/)", tag)[0]
    assert (recipe.image.ref, recipe.image.vllm) == (f"{repository}@{DIGEST}", release)


def test_a_measurement_of_another_text_is_left_out_with_a_note(tmp_path: Path) -> None:
    licence = "# Copyright\n\n"
    digest = sha256(PAIR.encode()).hexdigest()
    measured = f"{MEASURED}recipe_sha256: {digest}\n"
    assert imported(tmp_path, licence + PAIR, measured)[0].expect
    assert imported(tmp_path, licence + PAIR.replace("\n", "\r\n"), f"{MEASURED}recipe_sha256: {digest.upper()}\n")[
        0
    ].expect
    recipe, result = imported(tmp_path, licence + PAIR.replace('A="1"', 'A="2"'), measured)
    assert (recipe.image.ref, recipe.model.revision, recipe.expect) == ("r/i:latest", "", {})
    (note,) = (note for note in result.notes if "line 1: performance.yaml: was measured with another text" in note)
    assert note.endswith("its digest of the image, revision of the model and figures are left out")


def test_models_without_a_revision_are_named_as_ones_that_may_change(tmp_path: Path) -> None:
    drafted = PAIR + "checkpoint: {target_label: o/M, draft_label: o/D}\n"

    def noted(text: str, measured: str = "") -> list[bool]:
        notes = imported(tmp_path, text, measured)[1].notes
        lines = [f"checkpoint: {name}: no performance.yaml has its revision" for name in ("o/M", "o/D")]
        return [any(line in note for note in notes) for line in lines]

    assert noted(drafted) == [True, True]
    assert noted(drafted.replace("serve o/M", f"serve o/M --revision {REVISION}")) == [False, True]
    assert noted(drafted, MEASURED) == [False, True]
    (tmp_path / "performance.yaml").unlink()
    assert noted(PAIR + "  api_model: o/M\n") == [True, False]


def test_a_folder_has_its_recipes_and_not_what_was_measured_with_them(tmp_path: Path) -> None:
    for name, text in (("recipe.yaml", PAIR), ("performance.yaml", MEASURED)):
        (tmp_path / name).write_text(text)
    assert convert.find_files(tmp_path) == [tmp_path / "recipe.yaml"]


def test_a_file_of_that_name_that_is_no_measurement_is_tried(tmp_path: Path) -> None:
    for name, content in (("recipe.yaml", PAIR), ("performance.yaml", "model: o/M\n")):
        (tmp_path / name).write_text(content)
    assert tmp_path / "performance.yaml" in convert.find_files(tmp_path)


@pytest.mark.parametrize("text", ["", "profiles: [", "- profiles\n", "\0"])
def test_a_broken_measurement_is_a_note_of_its_recipe_and_no_recipe(tmp_path: Path, text: str) -> None:
    (tmp_path / "performance.yaml").write_text(text)
    _, result = imported(tmp_path, PAIR)
    assert any("performance.yaml: not read: " in note for note in result.notes)
    assert tmp_path / "performance.yaml" not in convert.find_files(tmp_path)


def test_a_device_that_gives_the_node_is_left_out(tmp_path: Path) -> None:
    given = "docker run --device /dev/sda:/dev/x --device=/dev/infiniband"
    recipe, result = imported(tmp_path, PAIR.replace("docker run", given))
    assert recipe.container.devices == ("/dev/infiniband",)
    assert any("--device /dev/sda:/dev/x: left out: the container gets /dev/sda" in note for note in result.notes)


def test_an_override_gives_a_variable_of_the_command(tmp_path: Path) -> None:
    recipe, _ = imported(tmp_path, PAIR.replace("--host 0.0.0.0", "--host $H"), H="::")
    assert recipe.args["host"] == "::"


def test_without_a_measurement_the_tag_is_named_as_one_that_moves(tmp_path: Path) -> None:
    recipe, result = imported(tmp_path, PAIR.replace("schema_version: 3", "schema_version: 4"))
    assert (recipe.image.ref, recipe.model.revision, recipe.expect) == ("r/i:latest", "", {})
    assert any("no performance.yaml has its digest, and the tag may move" in note for note in result.notes)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("backend: vllm", "backend: llama-cpp", "line 5: backend = .*: sparkd runs vLLM alone"),
        ("docker run", "podman run", "has `docker run` 0 times"),
        ("node_count: 2", "node_count: 65", "topology.node_count = 65: must be a number of nodes"),
        ("  command: |\n", "  commands: |\n", "runs no `vllm serve`"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_its_line(tmp_path: Path, old: str, new: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        imported(tmp_path, PAIR.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("dgx-spark-2gpu", "dgx-station", "hardware: dgx-station: is no DGX Spark"),
        ("-v ~/.triton:/root/.triton", "-v ~/x:/x", "--volume ~/x:/x: left out"),
        ("--ipc host", "--pid host", "--pid host: left out"),
        ("--ipc host", "--platform linux/amd64", "--platform linux/amd64: left out: a Spark is arm64"),
    ],
)
def test_what_the_engine_would_miss_leads_to_no_endpoint(tmp_path: Path, old: str, new: str, missing: str) -> None:
    _, result = imported(tmp_path, PAIR.replace(old, new))
    (line,) = result.missing
    assert missing in line


@pytest.mark.parametrize("options", ["-ti", "--rm -d -t", "--cap-add IPC_LOCK --init", "--rm --platform linux/arm64"])
def test_options_without_meaning_for_the_engine_change_nothing(tmp_path: Path, options: str) -> None:
    texts = [imported(tmp_path, PAIR.replace("--rm -it", given))[1].text for given in ("--rm -it", options)]
    assert texts[0] == texts[1]


def test_odd_figures_are_left_out(tmp_path: Path) -> None:
    odd = "software: [x]\nprofiles: [1, {workload: {concurrency: x}, results: {decode_tokens_per_second_mean: .inf}}]\n"
    recipe, _ = imported(tmp_path, PAIR, odd)
    assert (recipe.image.ref, recipe.expect) == ("r/i:latest", {})
