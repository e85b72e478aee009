"""Options of `docker run` and words behind the image become flags, variables and settings of the container."""

from pathlib import Path

import pytest
from tests.unit.started_engines import COMPOSE, IMAGE, LINE, UNIT, imported


@pytest.mark.parametrize(
    ("line", "args", "container"),
    [
        (f"sudo docker run -dit --rm --gpus=all {IMAGE} org/m --port 9000", {"port": 9000}, {}),
        (f"sudo nerdctl run --gpus all {IMAGE} org/m --port 9000", {"port": 9000}, {}),
        (f"docker run -p 9898:8000 {IMAGE} --model org/m", {"port": 9898}, {}),
        (f"docker run -p127.0.0.1:80:9000 {IMAGE} --model org/m --port=9000", {"port": 80, "host": "127.0.0.1"}, {}),
        (f"docker run --net host -p 1:8000 {IMAGE} --model org/m", {}, {}),
        (f"docker run -p 9000:8001 {IMAGE} --model org/m --port 8000 --port 8001", {"port": 9000}, {}),
        (f"docker run --rm -- {IMAGE} --model org/m", {}, {}),
        (f"docker run `# all of it` --gpus all {IMAGE} --model org/m", {}, {}),
        (f"docker run --ipc=host --shm-size 16g {IMAGE} --model=org/m", {}, {"ipc": "host", "shm_bytes": 16 << 30}),
        (f"docker run --shm-size=1g {IMAGE} --model org/m", {}, {"ipc": "private", "shm_bytes": 1 << 30}),
        (f"docker run --ulimit memlock=-1 {IMAGE} --model org/m", {},
         {"ulimits": {"memlock": {"soft": -1, "hard": -1}}}),
        (f"docker run --device /dev/fuse {IMAGE} --model org/m", {}, {"devices": ("/dev/fuse",)}),
        (f"docker run --entrypoint vllm {IMAGE} serve org/m -tp 1", {"tensor-parallel-size": 1}, {}),
        (f"docker run {IMAGE} python3 -m vllm.entrypoints.openai.api_server --model org/m --seed 1", {"seed": 1}, {}),
        (f"docker run -e S=3 --entrypoint bash {IMAGE} -c 'vllm serve org/m --seed $S'", {"seed": 3}, {}),
        (f"docker run {IMAGE} sh -lc 'exec vllm serve org/m'", {}, {}),
        (f"docker run {IMAGE} bash -c 'vllm serve \"$@\"' vllm org/m --seed 1", {"seed": 1}, {}),
        (f"docker run {IMAGE} serve org/m --seed 1", {"seed": 1}, {}),
        (f"bash -c 'sh -c \"bash -c \\\"docker run {IMAGE} --model org/m\\\"\"'", {}, {}),
        (f'docker run {IMAGE} bash -c -i "vllm serve \\\n  org/m --seed 1"', {"seed": 1}, {}),
        (f"docker run --privileged --init --memory 100g {IMAGE} --model org/m", {},
         {"privileged": True, "init": True, "memory_limit_bytes": 100 << 30}),
        (f"docker run --privileged=false --init=false {IMAGE} --model org/m", {}, {"privileged": False, "init": False}),
    ],
)  # fmt: skip
def test_a_docker_line_becomes_flags_and_settings_of_the_container(
    line: str, args: dict[str, object], container: dict[str, object], tmp_path: Path
) -> None:
    recipe = imported(tmp_path, line).recipe
    assert recipe.args == args
    assert recipe.model.repo == "org/m"
    assert recipe.image.ref == IMAGE
    assert recipe.container.model_dump(exclude_unset=True) == container


def test_dockers_own_options_are_named(tmp_path: Path) -> None:
    notes = imported(tmp_path, LINE.replace("run", "--context far -l debug run")).notes
    assert notes == ["line 1: docker --context far -l debug: left out: the node's own docker runs it"]


def test_privileged_is_named_once(tmp_path: Path) -> None:
    options = "--cap-add SYS_ADMIN --security-opt seccomp:unconfined --security-opt label=disable --privileged"
    result = imported(tmp_path, f"docker run {options} {IMAGE} --model org/m")
    assert result.recipe.container.privileged
    assert result.notes == ["line 1: --privileged: kept: root in the container is root on the node"]
    assert not imported(tmp_path, f"docker run --privileged=false {IMAGE} --model org/m").notes


def test_what_only_podman_or_docker_itself_needs_is_no_loss(tmp_path: Path) -> None:
    options = "--replace --cgroups=split --sdnotify=conmon --stop-signal TERM"
    assert imported(tmp_path, f"{UNIT}ExecStart=/usr/bin/podman run {options} {IMAGE} --model org/m\n").notes == []
    assert imported(tmp_path, COMPOSE + "    stop_signal: SIGINT\n").notes == []


def test_ray_is_named(tmp_path: Path) -> None:
    text = f"docker run {IMAGE} bash -c 'ray start --head && vllm serve org/m --distributed-executor-backend ray'"
    assert "ray start: left out: sparkd joins the nodes itself" in imported(tmp_path, text).notes[0]


@pytest.mark.parametrize(("ranks", "noted"), [(2, [True]), (1, [])])
def test_a_backend_that_is_not_taken_is_named_where_nodes_would_use_it(
    tmp_path: Path, ranks: int, noted: list[bool]
) -> None:
    backend = "--distributed-executor-backend ray"
    notes = imported(tmp_path, f"{LINE} -tp {ranks} {backend}").notes
    assert [f"{backend}: left out" in note for note in notes] == noted


@pytest.mark.parametrize(
    "platform",
    ["linux/arm64", "linux/arm64/v8", "linux/arm64/v9", "linux/aarch64", "arm64", '""', '"${P:-}"',
     "linux/amd64 --platform linux/arm64"],
)  # fmt: skip
def test_a_platform_of_a_spark_is_no_loss(platform: str, tmp_path: Path) -> None:
    assert imported(tmp_path, f"docker run --platform {platform} {IMAGE} --model org/m\n").missing == []
    assert imported(tmp_path, f"{COMPOSE}    platform: {platform.rpartition(' ')[2]}\n").missing == []


@pytest.mark.parametrize("text", [
    f"docker run --platform {{}} {IMAGE} --model org/m\n", f"{COMPOSE}    platform: {{}}\n",
    f"docker run --platform linux/arm64 --platform {{}} {IMAGE} --model org/m\n",
])  # fmt: skip
@pytest.mark.parametrize("platform", ["linux/amd64", "linux/386"])
def test_a_platform_of_another_machine_leads_to_no_endpoint(platform: str, text: str, tmp_path: Path) -> None:
    (loss,) = imported(tmp_path, text.format(platform)).missing
    assert loss.endswith(f": --platform {platform}: left out: a Spark is arm64: name an image for it")


@pytest.mark.parametrize("platform", ["$P", "linux/$(dpkg --print-architecture)"])
def test_a_platform_that_a_shell_fills_in_is_noted(platform: str, tmp_path: Path) -> None:
    result = imported(tmp_path, f"docker run --platform {platform} {IMAGE} --model org/m\n")
    unknown = platform.removeprefix("linux/")
    assert [note.rpartition(": ")[2] for note in result.notes] == [f"what {unknown} stands for is not known"]
    assert "does not lead to an endpoint" not in result.text


def test_a_launcher_before_exec_is_none_of_the_image(tmp_path: Path) -> None:
    recipe = imported(tmp_path, "/x/launch-cluster.sh -t i -e A=1 exec vllm serve org/m", image=IMAGE).recipe
    assert recipe.env == {"A": "1"}
    assert recipe.image.entrypoint == ("vllm", "serve")


def test_variables_that_env_sets_in_the_container_are_taken(tmp_path: Path) -> None:
    line = f"docker run -e A=1 -e TIKTOKEN_ENCODINGS_BASE=/x {IMAGE} env B=2 C=x=y nice --adjust=5 vllm serve org/m\n"
    result = imported(tmp_path, line)
    assert result.recipe.env == {"A": "1", "TIKTOKEN_ENCODINGS_BASE": "/x", "B": "2", "C": "x=y"}
    assert result.recipe.image.entrypoint == ("nice", "--adjust=5", "vllm", "serve")
    assert result.notes == []


def test_copies_of_the_engine_are_ranks_as_the_plan_counts_them(tmp_path: Path) -> None:
    assert imported(tmp_path, f"{LINE} --data-parallel-size 2 -tp 2\n").recipe.nodes.min == 4


@pytest.mark.parametrize(
    "command", ["logs -f vllm serve", "exec web vllm serve org/n", "run --rm web vllm serve org/n", "up vllm serve"]
)
def test_commands_of_compose_beside_an_engine_are_none_of_it(tmp_path: Path, command: str) -> None:
    assert imported(tmp_path, f"{LINE}\ndocker compose {command}\n").recipe.model.repo == "org/m"


@pytest.mark.parametrize(("before", "program"), [("taskset -c 5-9", ["taskset", "-c", "5-9"]), ("A=1", [])])
def test_what_runs_the_module_of_the_server_stays_before_it(tmp_path: Path, before: str, program: list[str]) -> None:
    module = "python3 -u -m vllm.entrypoints.openai.api_server --model org/m"
    recipe = imported(tmp_path, f"docker run --entrypoint bash {IMAGE} -c '{before} {module}'").recipe
    assert recipe.image.entrypoint == (*program, "vllm", "serve")
