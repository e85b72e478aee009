"""Docker itself, its containers by name, and the plan's image."""

import json
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.known_good_entries import known_good_entry

from sparkd.agent.actions.kept_images import KEPT_LABEL, container_name
from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.docker import (
    ContainersFacts,
    Docker,
    DockerEngineFacts,
    EngineImage,
    ImageFacts,
    Seen,
    StaleContainer,
)
from sparkd.agent.preflight.checks.stray_workers import StrayWorkers
from sparkd.base.host import Host, docker, docker_config, docker_image
from sparkd.base.host.docker import AWAY, ContainerFacts, DockerFacts
from sparkd.base.lib.dockerd.reader import DockerError, DockerReader
from sparkd.base.state import known_good
from sparkd.base.state.launch_history import FILE, AssertResult, LaunchHistory
from sparkd.base.state.rank_record import KnownRank
from sparkd.tools.node.sweep import find_orphans

ID = "0123456789abcdef" * 4
REF = "ghcr.io/x/vllm:1"
HOOK = "/usr/bin/nvidia-container-runtime-hook"
GOOD = DockerEngineFacts(True, True, "", "29.2.1", ("runc",), (HOOK,))
IMAGE = docker_image.Image(f"sha256:{ID}", "arm64", "2026-05-20T03:11:52Z", 3 << 30, "", (), (), ())


@pytest.mark.parametrize(
    ("facts", "uses_gpu", "level", "says"),
    [
        (GOOD, True, Level.OK, f"docker 29.2.1; to the GPU by {HOOK}"),
        (replace(GOOD, gpu_ways=("/etc/cdi/nvidia.yaml",)), True, Level.OK, "to the GPU by /etc/cdi/nvidia.yaml"),
        (replace(GOOD, gpu_ways=("the runtime nvidia",)), True, Level.OK, "to the GPU by the runtime nvidia"),
        (replace(GOOD, gpu_ways=("the runtime nvidia",)), False, Level.OK, "no GPU"),
        (replace(GOOD, gpu_ways=()), True, Level.BLOCK, "no way to the GPU"),
        (replace(GOOD, gpu_ways=()), False, Level.OK, "the plan uses no GPU"),
        (DockerEngineFacts(False, True), True, Level.WARN, "docker is away"),
        (DockerEngineFacts(True, True, "no answer in 10 s"), False, Level.UNKNOWN, "no answer in 10 s"),
    ],
)
def test_docker(facts: DockerEngineFacts, uses_gpu: bool, level: Level, says: str) -> None:
    verdict = Docker(uses_gpu).judge(facts)
    assert verdict.level is level
    assert says in verdict.reason


def test_a_docker_that_does_not_answer_is_waited_for_and_one_that_is_away_holds_nobody_up() -> None:
    assert Docker(False).judge(DockerEngineFacts(True, True, "x")).awaits == "docker to answer"
    assert not Docker(False).judge(DockerEngineFacts(False, True)).level.blocks


@pytest.mark.parametrize(("installed", "hint"), [(True, "sudo systemctl start docker"), (False, "install docker")])
def test_a_docker_that_is_not_there_can_not_be_started(installed: bool, hint: str) -> None:
    assert Docker(False).judge(DockerEngineFacts(False, installed)).hint.startswith(hint)


def engine(tree: Tree, **info: object) -> Tree:
    tree.dockerd()
    tree.docker("/version", {"Version": "29.2.1", "Arch": "arm64"})
    tree.docker("/info", {"Runtimes": {"runc": {}}, **info})
    return tree


@pytest.mark.parametrize(
    ("table", "runs"),
    [
        ("0: 00000002 00000000 00010000 0001 01 {} /run/docker.sock\n", True),
        ("0: 00000003 00000000 00000000 0001 03 {} /run/docker.sock\n", False),
        ("0: 00000002 00000000 00010000 0001 01 1 /run/docker.sock\n", False),
        ("0: 00000002 00000000 00010000 0001 01 {} /run/other.sock\n", False),
        ("0: 00000003 00000000 00000000 0001 03 9\n" * 420_000 + "0: 2 0 00010000 1 1 {} /run/docker.sock\n", True),
    ],
    ids=["listens", "no longer listens", "systemd's socket", "another socket", "a table of 16 MiB"],
)
def test_docker_is_queried_only_where_it_listens_itself(tree: Tree, table: str, runs: bool) -> None:
    tree.dockerd(700)
    tree.file("/proc/net/unix", f"Num\n{table.format(700)}")
    assert docker.running(Host(tree.root)) is runs


def test_a_row_that_a_users_socket_name_forges_is_no_error(tree: Tree) -> None:
    """bind(2) of an abstract name with line ends: the kernel prints its bytes as they are."""
    tree.dockerd(700)
    table = tree.file("/proc/net/unix")
    forged = b"Num\n0: 2 0 0 1 1 5 @\0\n0: a b 00010000 c d \xff /run/docker.sock\n"
    table.write_bytes(forged)
    assert not docker.running(Host(tree.root))
    table.write_bytes(forged + b"0: 2 0 00010000 1 1 700 /run/docker.sock\n")
    assert docker.running(Host(tree.root))


@pytest.mark.parametrize(
    ("info", "proposed"),
    [
        ({"LiveRestoreEnabled": False, "Swarm": {"LocalNodeState": "inactive"}}, True),
        ({"LiveRestoreEnabled": True, "Swarm": {"LocalNodeState": "inactive"}}, False),
        ({"LiveRestoreEnabled": False, "Swarm": {"LocalNodeState": "active"}}, False),
        ({"LiveRestoreEnabled": False, "Swarm": {"LocalNodeState": "error"}}, False),
        ({"LiveRestoreEnabled": False}, False),
        ({"Swarm": {"LocalNodeState": "inactive"}}, False),
    ],
)
def test_live_restore_is_proposed_where_it_is_off_and_docker_would_start_with_it(
    tree: Tree, info: dict[str, object], proposed: bool
) -> None:
    """dockerd does not start with it on a node of a swarm."""
    engine(tree, **info)
    verdict = Docker(uses_gpu=False).run(Host(tree.root))[1]
    assert verdict.level is Level.OK
    assert ("live-restore is off" in verdict.reason, "sparkd init --plan" in verdict.hint) == (proposed,) * 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, {"live-restore": True}),
        ('{"runtimes": {"nvidia": {"path": "x"}}, "live-restore": false}',
         {"runtimes": {"nvidia": {"path": "x"}}, "live-restore": True}),
    ],
)  # fmt: skip
def test_the_command_that_turns_live_restore_on_keeps_what_else_the_file_has(
    tmp_path: Path, before: str | None, after: dict[str, object]
) -> None:
    file = tmp_path / "docker/daemon.json"
    if before is not None:
        file.parent.mkdir()
        file.write_text(before)
    assert turn_on(file).returncode == 0
    assert json.loads(file.read_text()) == after
    assert [one.name for one in file.parent.iterdir()] == ["daemon.json"]


@pytest.mark.parametrize("text", ["", '{"runtimes": ', "[]"])
def test_the_command_leaves_a_file_that_is_not_valid_as_it_is_and_docker_too(tmp_path: Path, text: str) -> None:
    file = tmp_path / "daemon.json"
    file.write_text(text)
    done = turn_on(file)
    assert done.returncode != 0 and "reloaded" not in done.stdout
    assert file.read_text() == text


def turn_on(file: Path) -> subprocess.CompletedProcess[str]:
    """By the command that is shown, on another file."""
    shown = docker_config.KEEP_CONTAINERS.replace(docker_config.DAEMON_JSON, str(file)).replace("sudo ", "")
    command = shown.replace("systemctl reload docker", "echo reloaded")
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30, check=False)


def ways(tree: Tree) -> tuple[str, ...]:
    return Docker(uses_gpu=True).probe(Host(tree.root)).gpu_ways


@pytest.mark.parametrize("mode", ["cdi", "csv", "jit-cdi"])
def test_a_hook_that_is_set_to_refuse_is_no_way(tree: Tree, mode: str) -> None:
    """As `nvidia-ctk config --set nvidia-container-runtime.mode=cdi` has it: --gpus ends with the hook's refusal."""
    engine(tree, Runtimes={"nvidia": {}})
    tree.file(HOOK, mode=0o755)
    tree.file(docker_config.TOOLKIT, f'#mode = "auto"\n[nvidia-container-runtime]\nmode = "{mode}"\n')
    assert ways(tree) == ("the runtime nvidia",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[nvidia-container-runtime]\nmode = 'auto'\n",
        "[nvidia-container-runtime]\nmode = 3\n",
        "mode = [",
        "[" * 9999,
    ],
)
def test_a_hook_counts_where_nothing_says_that_it_refuses(tree: Tree, text: str) -> None:
    engine(tree)
    tree.file(HOOK, mode=0o755)
    tree.file(docker_config.TOOLKIT, text)
    assert ways(tree) == (HOOK,)


@pytest.mark.parametrize(
    ("ways", "wanted"),
    [
        ((HOOK,), docker_config.GpuAccess.GPUS),
        (("the runtime nvidia", HOOK, "/etc/cdi/nvidia.yaml"), docker_config.GpuAccess.GPUS),
        (("/var/run/cdi/nvidia.yaml",), docker_config.GpuAccess.DEVICE),
        (("the runtime nvidia", "/etc/cdi/nvidia.yaml"), docker_config.GpuAccess.DEVICE),
        (("the runtime nvidia",), docker_config.GpuAccess.RUNTIME),
        ((), docker_config.GpuAccess.GPUS),
    ],
)
def test_a_container_requests_the_gpu_by_the_first_way(ways: tuple[str, ...], wanted: docker_config.GpuAccess) -> None:
    assert docker_config.choose_gpu_access(ways) is wanted


def test_each_launch_reads_dockers_ways_again(tree: Tree) -> None:
    assert docker_config.read_gpu_access(Host(tree.root)) is docker_config.GpuAccess.GPUS, "docker is away"
    engine(tree, CDISpecDirs=["/etc/cdi"])
    tree.file("/etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n")
    assert docker_config.read_gpu_access(Host(tree.root)) is docker_config.GpuAccess.DEVICE
    tree.docker("/info", "busy")
    with pytest.raises(DockerError):
        docker_config.read_gpu_access(Host(tree.root))


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        pytest.param(f"a:\n{'  - path: /usr/lib/libcuda.so' * 5000}\nkind: nvidia.com/gpu\n", True, id="at its end"),
        ('{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[]}', True),
        ('{\n  "kind" : "nvidia.com/gpu"\n}', True),
        ("kind: 'nvidia.com/gpu'", True),
        ("kind: management.nvidia.com/gpu", False),
        ("kind: nvidia.com/gpu-share", False),
        ('kind: "nvidia.com/gpu.shared"', False),
        ("kind: vendor.com/nic", False),
    ],
)
def test_a_specification_counts_if_its_kind_is_the_gpu(tree: Tree, text: str, counts: bool) -> None:
    engine(tree, CDISpecDirs=["/etc/cdi", "/var/run/cdi"])
    tree.file("/var/run/cdi/nvidia.yaml", text)
    assert ways(tree) == (("/var/run/cdi/nvidia.yaml",) if counts else ())


def test_a_specification_that_docker_does_not_read_is_no_way(tree: Tree) -> None:
    tree.file("/etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n")
    engine(tree)
    assert ways(tree) == (), "a docker before 25 knows no CDI"
    tree.docker("/info", {"Runtimes": {}, "CDISpecDirs": []})
    assert ways(tree) == ()


def test_an_unreadable_specification_hides_no_other_way_to_the_gpu(tree: Tree) -> None:
    """A link to nothing, a folder, and a file where a folder is looked for: what a half removed toolkit leaves."""
    engine(tree, Runtimes={"nvidia": {}}, CDISpecDirs=["/etc/cdi", "/var/run/cdi"])
    tree.link("/etc/cdi/a.yaml", "/missing")
    tree.file("/etc/cdi/b.json/x")
    tree.file("/var/run/cdi")
    assert ways(tree) == ("the runtime nvidia",)
    tree.file("/etc/cdi/c.yaml", "kind: nvidia.com/gpu\n")
    assert ways(tree) == ("the runtime nvidia", "/etc/cdi/c.yaml")


@pytest.mark.parametrize("answer", [None, [], "busy", {"Runtimes": []}, {}])
def test_what_is_not_dockers_api_is_unknown(tree: Tree, answer: object) -> None:
    engine(tree)
    tree.docker("/info", answer)
    facts = Docker(uses_gpu=True).probe(Host(tree.root))
    assert facts.error
    assert Docker(uses_gpu=True).judge(facts).level is Level.UNKNOWN


def seen(name: str = "sparkd-rank0", *, ours: bool = False, policy: str = "no") -> ContainersFacts:
    return ContainersFacts("known", (Seen(ID, name, ours, running=False, restart_policy=policy),))


@pytest.mark.parametrize(
    ("facts", "level", "hint"),
    [
        (ContainersFacts("known", ()), Level.OK, ""),
        (ContainersFacts("away", ()), Level.SKIPPED, ""),
        (ContainersFacts("HTTP 500", ()), Level.UNKNOWN, "systemctl status docker"),
        (seen(), Level.BLOCK, f"sudo docker rename sparkd-rank0 old-{ID[:12]}"),
        (seen(ours=True), Level.OK, ""),
        (seen(ours=True, policy="always"), Level.WARN, "sudo docker update --restart=no sparkd-rank0"),
        (seen("serve", policy="unless-stopped"), Level.WARN, "sudo docker update --restart=no serve"),
        (seen("serve"), Level.OK, ""),
        (seen(policy="always"), Level.BLOCK, f"sudo docker rename sparkd-rank0 old-{ID[:12]}"),
    ],
)
def test_stale_container(facts: ContainersFacts, level: Level, hint: str) -> None:
    verdict = StaleContainer("sparkd-rank0").judge(facts)
    assert (verdict.level, verdict.fixes) == (level, ())
    assert hint in verdict.hint


def container(name: str, *labels: tuple[str, str], policy: str = "no") -> ContainerFacts:
    return ContainerFacts(ID, name, labels, False, 0, "sha256:1", policy)


def test_containers_of_the_ranks_name_or_label_are_looked_at_and_no_others(tree: Tree) -> None:
    found = (
        container("sparkd-rank0"),
        container("sparkd-rank1"),
        container("postgres", policy="always"),
        container("copy", ("io.sparkd.role", "head")),
    )
    facts = StaleContainer("sparkd-rank0").probe(Host(tree.root, docker=lambda: DockerFacts(True, found)))
    assert [one.name for one in facts.containers] == ["sparkd-rank0", "copy"]
    assert StaleContainer("sparkd-rank0").probe(Host(tree.root, docker=lambda: AWAY)).docker == "away"


def test_a_container_that_keeps_an_image_is_nobodys_rank(tree: Tree) -> None:
    kept = container(container_name(f"sha256:{ID}"), (KEPT_LABEL, f"sha256:{ID}"))
    host = Host(tree.root, docker=lambda: DockerFacts(True, (kept,)))
    assert not kept.ours
    assert StaleContainer("sparkd-rank0").probe(host).containers == ()
    assert StrayWorkers().probe(host).containers == ()
    assert find_orphans((kept,), None, KnownRank(), "", None) == ()


def listed(tree: Tree, state: str) -> Host:
    """A machine whose docker lists a rank of sparkd's, and fails when its details are read."""
    engine(tree)
    labels = {"io.sparkd.role": "head", "io.sparkd.invocation": "of before"}
    entry = {"Id": ID, "Names": ["/sparkd-rank0"], "ImageID": "sha256:1", "Labels": labels, "State": state}
    tree.docker("/containers/json", [entry])
    message = f"RWLayer of container {ID} is unexpectedly nil"
    tree.docker(f"/containers/{ID}/json", {"message": message}, fails=True)
    return Host(tree.root)


@pytest.mark.parametrize("state", ["created", "exited", "dead"])
def test_a_container_that_a_power_cut_has_left_without_its_layer_holds_nobody_up(tree: Tree, state: str) -> None:
    host = listed(tree, state)
    assert [(one.name, one.ours, one.running) for one in host.docker().containers] == [("sparkd-rank0", True, False)]
    assert StaleContainer("sparkd-rank0").run(host)[1].level is Level.OK, "it is removed: see stray-workers"
    assert StrayWorkers().run(host)[1].clears


def test_a_container_that_runs_and_can_not_be_described_may_be_anything(tree: Tree) -> None:
    assert listed(tree, "running").docker().error == f"GET /containers/{ID}/json: HTTP 500"


@pytest.mark.parametrize(
    ("facts", "level", "says"),
    [
        (ImageFacts(REF, (), "known", "arm64", IMAGE), Level.OK, "0123456789ab, 3.0 GiB, built 2026-05-20"),
        (ImageFacts(REF, (), "known", "arm64", None), Level.BLOCK, f"image {REF} is not on this node"),
        (ImageFacts(REF, (), "known", "amd64", IMAGE), Level.BLOCK, "is for arm64, and this machine is amd64"),
        (ImageFacts(REF, (), "known", "arm64", replace(IMAGE, architecture="")), Level.OK, "3.0 GiB"),
        (ImageFacts(REF, (), "away"), Level.SKIPPED, "docker is away"),
        (ImageFacts(REF, (), "HTTP 500"), Level.UNKNOWN, "HTTP 500"),
    ],
)
def test_image(facts: ImageFacts, level: Level, says: str) -> None:
    verdict = EngineImage(REF).judge(facts)
    assert verdict.level is level
    assert says in verdict.reason


@pytest.mark.parametrize(
    ("ref", "build", "get"),
    [
        (REF, "", f"sudo docker pull {REF}"),
        ("account/vllm:1", "", "sudo docker pull account/vllm:1"),
        (REF, "make image", "make image"),
        ("vllm-node-dsv4", "./build-and-copy.sh", "./build-and-copy.sh"),
        (f"ubuntu@sha256:{'a' * 64}", "make image", f"sudo docker pull ubuntu@sha256:{'a' * 64}"),
        ("vllm-node-dsv4", "", "build it (no registry has a name without an account)"),
    ],
)
def test_a_missing_image_is_pulled_or_built_by_a_person(ref: str, build: str, get: str) -> None:
    verdict = EngineImage(ref, build=build).judge(ImageFacts(ref, (), "known", "arm64", None))
    assert (verdict.hint, verdict.fixes) == (f"{get}, or sparkd image sync on a node that has it", ())


@pytest.mark.parametrize(
    ("checked", "level", "says", "hint"),
    [
        (None, Level.WARN, "what the recipe asserts of it is not checked yet", "the next start does"),
        (AssertResult("", 1.0, ""), Level.OK, "3.0 GiB", ""),
        (AssertResult("no deep_gemm", 1.0, ""), Level.BLOCK, "not what the recipe needs: no deep_gemm", "make image"),
    ],
)
def test_an_image_is_what_its_recipe_asserts(checked: AssertResult | None, level: Level, says: str, hint: str) -> None:
    check = EngineImage(REF, ("true",), "true", "make image")
    verdict = check.judge(ImageFacts(REF, ("true",), "known", "arm64", IMAGE, checked))
    assert (verdict.level, verdict.hint) == (level, hint)
    assert says in verdict.reason


def test_the_result_of_an_images_assertions_is_read(tree: Tree) -> None:
    tree.dockerd()
    tree.docker("/version", {"Arch": "arm64"})
    tree.docker(f"/images/{REF}/json", {"Id": "sha256:1", "Architecture": "arm64", "Os": "linux", "Config": {}})
    result = AssertResult("no deep_gemm", 1.0, "")
    tree.file(FILE.path, FILE.encode(LaunchHistory().record_asserts("sha256:1", "true", result)))
    host = Host(tree.root)
    assert EngineImage(REF, ("true",), "true").run(host)[0].checked == result
    assert EngineImage(REF, ("false",), "false").run(host)[0].checked is None
    assert EngineImage(REF).run(host)[1].level is Level.OK


def test_an_image_that_went_by_its_id_can_not_be_pulled() -> None:
    verdict = EngineImage("sha256:e").judge(ImageFacts("sha256:e", (), "known", "arm64", None))
    assert "docker pull" not in verdict.hint
    assert "sparkd rollback" in verdict.hint


DIGEST = f"ghcr.io/x/vllm@sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("ref", "known", "here", "hint"),
    [
        (
            REF,
            DIGEST,
            False,
            f"the one that served: sudo docker pull {DIGEST} && sudo docker tag {DIGEST} {REF}; or another: ",
        ),
        (REF, "", False, f"sudo docker pull {REF}"),
        (REF, DIGEST, True, f"the one that served: sudo docker tag sha256:{ID} {REF}; or another: "),
        (f"sha256:{ID}", DIGEST, False, f"the one that served: sudo docker pull {DIGEST}; or another: "),
        ("ghcr.io/x/vllm:2", DIGEST, True, "sudo docker pull ghcr.io/x/vllm:2"),
        (DIGEST, DIGEST, True, f"sudo docker pull {DIGEST}, or sparkd image sync on a node that has it"),
        (DIGEST, DIGEST, False, f"sudo docker pull {DIGEST}, or sparkd image sync on a node that has it"),
    ],
)
def test_of_a_missing_image_the_one_that_served_is_named_and_none_where_a_digest_pins_it(
    tree: Tree, ref: str, known: str, here: bool, hint: str
) -> None:
    engine(tree)
    served = known_good_entry(image_id=f"sha256:{ID}", image_digest=known)
    facts = replace(served.facts, values={"image": ref} if ref == DIGEST else {"unchecked.image": REF})
    tree.file(known_good.FILE.path, known_good.FILE.encode(known_good.History((replace(served, facts=facts),))))
    if here:
        tree.docker(f"/images/sha256:{ID}/json", {"Id": f"sha256:{ID}", "Architecture": "", "Os": "", "Config": {}})
    verdict = EngineImage(ref).run(Host(tree.root))[1]
    assert verdict.level is Level.BLOCK
    assert verdict.hint == hint if ref == DIGEST else verdict.hint.startswith(hint)


@pytest.mark.parametrize(
    ("name", "digests", "found"),
    [
        (REF, (DIGEST,), DIGEST),
        (f"{REF.partition(':')[0]}@sha256:{'b' * 64}", (DIGEST,), DIGEST),
        (REF, (f"sparkd/known-good@sha256:{'a' * 64}", DIGEST), DIGEST),
        ("docker.io/x/vllm:1", (f"x/vllm@sha256:{'a' * 64}",), f"x/vllm@sha256:{'a' * 64}"),
        ("localhost:5000/vllm", (f"localhost:5000/vllm@sha256:{'a' * 64}",), f"localhost:5000/vllm@sha256:{'a' * 64}"),
        (REF, (f"{DIGEST}; reboot",), ""),
        (REF, ("ghcr.io/x/vllm@sha256:1",), ""),
        (REF, (f"evil/vllm@sha256:{'a' * 64}",), ""),
        (REF, (), ""),
    ],
)
def test_the_digest_is_that_of_the_images_own_repository(
    tree: Tree, name: str, digests: tuple[str, ...], found: str
) -> None:
    engine(tree)
    answer = {"Id": f"sha256:{ID}", "Architecture": "", "Os": "", "Config": {}, "RepoDigests": list(digests)}
    tree.docker(f"/images/sha256:{ID}/json", answer)
    assert docker_image.read_digest(Host(tree.root), f"sha256:{ID}", name) == found


def reader(tree: Tree, answer: object) -> DockerReader:
    tree.docker(f"/images/{REF}/json", answer)
    return Host(tree.root).docker_reader()


def test_of_an_images_labels_those_of_its_build_are_kept(tree: Tree) -> None:
    labels = {"org.opencontainers.image.revision": "4c1f", "api-key": "hidden", "com.nvidia.x": "a\nb" * 500}
    answer = {"Id": "sha256:1", "Architecture": "arm64", "Os": "linux", "Config": {"Labels": labels, "User": None}}
    image = docker_image.read_image(reader(tree, answer), REF)
    assert image is not None
    assert [key for key, _ in image.labels] == ["com.nvidia.x", "org.opencontainers.image.revision"]
    assert len(image.labels[0][1]) <= 200
    assert (image.user, image.size_bytes, image.created) == ("", 0, "")


@pytest.mark.parametrize(
    ("said", "level"), [("arm64", Level.OK), ("aarch64", Level.OK), ("", Level.OK), ("x86_64", Level.BLOCK)]
)
def test_an_architecture_has_more_than_one_name(tree: Tree, said: str, level: Level) -> None:
    engine(tree)
    reader(tree, {"Id": "sha256:1", "Architecture": said, "Os": "linux", "Config": None})
    assert EngineImage(REF).run(Host(tree.root))[1].level is level


@pytest.mark.parametrize("answer", [[], "x", {}, {"Id": 1}, {"Id": "sha256:1", "Architecture": "arm64", "Os": "linux"}])
def test_a_description_that_is_not_dockers_is_no_image(tree: Tree, answer: object) -> None:
    with pytest.raises(DockerError, match=REF):
        docker_image.read_image(reader(tree, answer), REF)


def test_probe_lists_the_assertions_of_the_script(tree: Tree) -> None:
    engine(tree)
    facts = EngineImage(REF, ("1 line(s) of /a match b",)).probe(Host(tree.root))
    assert facts == ImageFacts(REF, ("1 line(s) of /a match b",), "known", "arm64", None)
