"""What else starts vLLM by itself: units as people write them, and containers that docker restarts."""

import time

import pytest
from tests.tree import Tree
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level, Verdict, ok
from sparkd.agent.preflight.checks.foreign_units import ForeignFacts, ForeignUnits
from sparkd.base.host import Host
from sparkd.base.host.docker import AWAY, ContainerFacts, DockerFacts

WANTS = "/etc/systemd/system/multi-user.target.wants"
IMAGE = "vllm/vllm-openai:v0.32.0"


def enable(tree: Tree, text: str, name: str = "own.service") -> None:
    tree.file(f"/etc/systemd/system/{name}", f"[Service]\n{text}\n")
    tree.link(f"{WANTS}/{name}", f"/etc/systemd/system/{name}")


def run_check(tree: Tree, docker: DockerFacts = AWAY) -> tuple[ForeignFacts, Verdict]:
    return ForeignUnits().run(Host(tree.root, docker=lambda: docker))


@pytest.mark.parametrize(
    ("exec_start", "starts_vllm"),
    [
        ("/usr/local/bin/vllm serve /models/x", True),
        ("/opt/venv/bin/python3 -m vllm.entrypoints.openai.api_server --model x", True),
        ("/opt/venv/bin/python -m vllm serve x", True),
        ("/bin/bash -lc 'source /opt/venv/bin/activate && exec vllm serve x'", True),
        ("/usr/bin/docker run --rm --gpus all vllm/vllm-openai:latest --model x", True),
        ("/usr/bin/docker start -a vllm_ds4", True),
        ("/usr/bin/docker exec vllm_ds4 bash /workspace/vllm-head.sh", True),
        ("/usr/bin/docker compose -f /srv/vllm/docker-compose.yml up", True),
        ("/usr/bin/podman run --device nvidia.com/gpu=all docker.io/vllm/vllm-openai x", True),
        ("/home/milo/spark-vllm-docker/launch-cluster.sh --no-ray start", True),
        ("/usr/local/bin/sparkrun run deepseek --tp 2", True),
        ("-/usr/bin/docker start vllm_ds4", True),
        ("/usr/bin/docker logs -f vllm_ds4", False),
        ("/usr/bin/docker run --rm grafana/grafana", False),
        ("/usr/local/bin/vllm-exporter --listen :9400", False),
        ("/usr/bin/tail -F /var/log/vllm.log", False),
        ("/usr/bin/python3 -m http.server", False),
        ("/usr/bin/dockerd -H fd://", False),
        ("", False),
    ],
)
def test_a_unit_whose_command_starts_vllm_is_warned_of(tree: Tree, exec_start: str, starts_vllm: bool) -> None:
    enable(tree, f"ExecStart={exec_start}")
    facts, verdict = run_check(tree)
    assert bool(facts.units) is starts_vllm
    assert (verdict.level is Level.WARN) is starts_vllm


@pytest.mark.parametrize("also_in_etc", [False, True])
def test_a_link_that_a_package_ships_is_masked_as_disable_leaves_it(tree: Tree, also_in_etc: bool) -> None:
    tree.file("/usr/lib/systemd/system/ds4.service", "[Service]\nExecStart=/usr/bin/vllm serve x\n")
    tree.link("/usr/lib/systemd/system/multi-user.target.wants/ds4.service", "../ds4.service")
    if also_in_etc:
        tree.link(f"{WANTS}/ds4.service", "/usr/lib/systemd/system/ds4.service")
    assert run_check(tree)[1].hint == "if sparkd is to serve: sudo systemctl mask ds4.service"


def test_a_unit_that_nobody_wants_or_that_is_masked_or_sparkds_own_does_not_count(tree: Tree) -> None:
    tree.file("/etc/systemd/system/unwanted.service", "[Service]\nExecStart=/usr/bin/vllm serve x\n")
    enable(tree, "ExecStart=/usr/bin/vllm serve x", "sparkd-head.service")
    tree.link(f"{WANTS}/masked.service", "/etc/systemd/system/masked.service")
    tree.link("/etc/systemd/system/masked.service", "/dev/null")
    tree.file("/usr/lib/systemd/system/masked.service", "[Service]\nExecStart=/usr/bin/vllm serve x\n")
    tree.link(f"{WANTS}/gone.service", "/usr/lib/systemd/system/gone.service")
    assert run_check(tree)[1].level is Level.OK


def test_drop_ins_count_and_an_instance_has_the_text_of_its_template(tree: Tree) -> None:
    enable(tree, "ExecStart=/usr/bin/vllm serve x")
    tree.file("/etc/systemd/system/own.service.d/10.conf", "[Service]\nExecStart=\nExecStart=/bin/true\n")
    tree.file("/etc/systemd/system/vllm@.service", "[Service]\nExecStart=/usr/bin/vllm serve %i\n")
    tree.link(f"{WANTS}/vllm@qwen.service", "/etc/systemd/system/vllm@.service")
    assert [unit.name for unit in run_check(tree)[0].units] == ["vllm@qwen.service"]


@pytest.mark.parametrize(
    ("path", "text", "starts_vllm"),
    [
        ("/home/milo/start.sh", "#!/bin/bash\nexport A=1\nvllm serve \\\n  /models/x\n", True),
        ("/home/milo/start.sh", "#!/bin/bash\ndocker run \\\n --gpus all \\\n  vllm/vllm-openai\n", True),
        ("/home/milo/start.sh", "#!/bin/bash\n# was: vllm serve x\necho none\n", False),
        ("/home/milo/start.sh", "#!/bin/bash\ndocker run grafana\necho vllm\n", False),
        ("/srv/ai/compose.yaml", "services:\n  llm:\n    image: vllm/vllm-openai\n", True),
        ("/srv/ai/compose.yaml", "services:\n  web:\n    image: nginx\n", False),
        ("/srv/ai/blob.sh", "\x00\x01 vllm", False),
    ],
)
def test_a_script_that_the_command_names_is_looked_into(tree: Tree, path: str, text: str, starts_vllm: bool) -> None:
    tree.file(path, text)
    enable(tree, f"ExecStart=/usr/bin/docker compose -f {path} up" if path.endswith("yaml") else f"ExecStart={path}")
    assert bool(run_check(tree)[0].units) is starts_vllm


@pytest.mark.parametrize("word", ["docker ", "python -x "])
def test_one_endless_line_takes_no_endless_time(tree: Tree, word: str) -> None:
    tree.file("/home/milo/start.sh", word * 9000)
    enable(tree, "ExecStart=/home/milo/start.sh")
    began = time.process_time()
    assert not run_check(tree)[0].units
    assert time.process_time() - began < 1.0, "seconds, where the patterns see all of it"


def test_a_unit_that_cannot_be_read_is_named(tree: Tree) -> None:
    enable(tree, "ExecStart=/bin/sh -c 'left open")
    expect(run_check(tree)[1], Level.WARN, hint="systemctl cat own.service")


def container(policy: str, image: str, *command: str, ours: bool = False) -> DockerFacts:
    labels = (("io.sparkd.role", "head"),) if ours else ()
    name = "sparkd-rank0" if ours else "theirs"
    return DockerFacts(True, (ContainerFacts("1" * 64, name, labels, True, 9, "sha256:1", policy, image, command),))


@pytest.mark.parametrize(
    "docker",
    [
        container("always", IMAGE),
        container("unless-stopped", "mine:1", "vllm", "serve", "x"),
        container("on-failure", "mine:1", "bash", "-c", "vllm serve x"),
    ],
)
def test_a_container_of_vllm_that_docker_restarts_is_warned_of(tree: Tree, docker: DockerFacts) -> None:
    expect(run_check(tree, docker)[1], Level.WARN, text="sudo docker update --restart=no theirs")


@pytest.mark.parametrize(
    "docker",
    [
        pytest.param(container("no", IMAGE), id="not restarted"),
        pytest.param(container("always", "postgres:17", "postgres"), id="no vLLM"),
        pytest.param(container("always", IMAGE, ours=True), id="sparkd's own"),
    ],
)
def test_other_containers_are_not_warned_of(tree: Tree, docker: DockerFacts) -> None:
    assert run_check(tree, docker)[1].level is Level.OK


def test_a_machine_without_systemd_has_no_units(tree: Tree) -> None:
    reason = "none of 0 enabled services starts vLLM; docker's containers were not checked"
    assert run_check(tree)[1] == ok(reason)


@pytest.mark.parametrize(
    ("arguments", "whom"),
    [
        pytest.param(
            "-m 2 -s 80 --prefer (vllm|VLLM|sglang|python) --avoid (sshd|dockerd)",
            "the engine before others (--prefer)",
            id="sparkrun's own",
        ),
        ("-r 3600", "the largest process"),
        ("--avoid (vllm|python)", "the largest process"),
        ("--prefer ^chrome$ --avoid vllm", "the largest process"),
    ],
)
def test_an_earlyoom_that_runs_is_a_second_killer(tree: Tree, arguments: str, whom: str) -> None:
    argv = ("/usr/bin/earlyoom", *arguments.split())
    tree.process(50, "earlyoom", argv=argv, cgroup="0::/system.slice/earlyoom.service")
    # A user's own program may have the name, and ends nobody.
    tree.process(51, "earlyoom", argv=argv, cgroup="0::/user.slice/user-1000.slice/session-3.scope", uid=1000)
    reason = f"earlyoom.service ends {whom} for want of memory, beside sparkd's guard"
    expect(run_check(tree)[1], Level.WARN, text=f"{reason} sudo systemctl disable --now earlyoom.service;")


SWAP, PRESSURE = "[Slice]\nManagedOOMSwap=kill\n", "[Slice]\nManagedOOMMemoryPressure=kill\n"


@pytest.mark.parametrize(
    ("files", "manages"),
    [
        ({}, False),
        # Ubuntu's and Fedora's own: a user's processes, and all by swap.
        ({"/usr/lib/systemd/system/user@.service.d/10-oomd.conf": "[Service]\nManagedOOMMemoryPressure=kill\n"}, False),
        ({"/usr/lib/systemd/system/-.slice.d/10-oomd-root-slice-defaults.conf": SWAP}, True),
        ({"/etc/systemd/system.control/system.slice.d/50-ManagedOOMMemoryPressure.conf": PRESSURE}, True),
        ({"/usr/lib/systemd/system/system.slice.d/10-a.conf": PRESSURE,
          "/etc/systemd/system/system.slice.d/20-b.conf": "[Slice]\nManagedOOMMemoryPressure=auto\n"}, False),
        ({"/usr/lib/systemd/system/-.slice.d/a.conf": SWAP, "/etc/systemd/system/-.slice.d/a.conf": ""}, False),
        ({"/etc/systemd/system/user.slice.d/a.conf": PRESSURE}, False),
    ],
)  # fmt: skip
def test_a_systemd_oomd_that_manages_the_slice_of_dockers_containers_is_a_second_killer(
    tree: Tree, files: dict[str, str], manages: bool
) -> None:
    for path, text in files.items():
        tree.file(path, text)
    assert run_check(tree)[0].killers == (), "it does not run"
    tree.process(50, "systemd-oomd", cgroup="0::/system.slice/systemd-oomd.service")
    verdict = run_check(tree)[1]
    assert ("ends containers (ManagedOOM of the slice that has docker's)" in verdict.reason) is manages
    assert ("disable --now systemd-oomd.service systemd-oomd.socket;" in verdict.hint) is manages


def test_a_killer_of_containers_by_name_is_a_second_one(tree: Tree) -> None:
    enable(tree, "ExecStart=/usr/local/bin/dgx-anti-oom", "dgx-anti-oom.service")
    expect(run_check(tree)[1], Level.WARN, "dgx-anti-oom.service ends containers by their name for want of memory")
