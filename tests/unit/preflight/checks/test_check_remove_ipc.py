"""Whose segments systemd-logind would take away from a running engine."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.plans import plan
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.shared_memory import RemoveIpc, RemoveIpcFacts, removes_ipc
from sparkd.base.host import Host

CHECK = RemoveIpc(replace(plan(), image="x/vllm:1"), host_ipc=True)


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        (RemoveIpcFacts(removes=False), Level.OK, "removes no segments"),
        (RemoveIpcFacts(True, None), Level.SKIPPED, "not checked"),
        (RemoveIpcFacts(True, ""), Level.OK, "root"),
        (RemoveIpcFacts(True, "root"), Level.OK, "root"),
        (RemoveIpcFacts(True, "0"), Level.OK, "user of the system"),
        (RemoveIpcFacts(True, "999"), Level.OK, "user of the system"),
        (RemoveIpcFacts(True, "1000"), Level.OK, "can't log in here"),
        (RemoveIpcFacts(True, "1000", "spark", True), Level.OK, "whose services logind keeps"),
        (RemoveIpcFacts(True, "1000", "spark"), Level.WARN, "sudo loginctl enable-linger spark"),  # words: keep
        (RemoveIpcFacts(True, "vllm"), Level.WARN, "RemoveIPC=no"),
    ],
)
def test_an_image_that_runs_as_who_logs_in_is_warned_of(facts: RemoveIpcFacts, level: Level, words: str) -> None:
    expect(CHECK.judge(facts), level, text=words)


def machine(tree: Tree, user: object) -> Host:
    tree.file("/usr/lib/systemd/systemd-logind")
    tree.file(
        "/etc/passwd",
        "root:x:0:0:root:/root:/bin/bash\nspark:x:1000:1000::/home/spark:/bin/bash\nhere:x:1002:1002::/:/bin/sh\n",
    )
    tree.file("/var/lib/systemd/linger/here")  # words: keep
    tree.dockerd()
    config = {} if user is None else {"User": user}
    tree.docker("/images/x/vllm:1/json", {"Id": "sha256:1", "Architecture": "arm64", "Os": "linux", "Config": config})
    return Host(tree.root)


@pytest.mark.parametrize(
    ("user", "facts"),
    [
        ("1000:1000", RemoveIpcFacts(True, "1000", "spark")),
        ("1001", RemoveIpcFacts(True, "1001")),
        ("vllm", RemoveIpcFacts(True, "vllm")),
        (None, RemoveIpcFacts(True, "")),
        ("1002", RemoveIpcFacts(True, "1002", "here", True)),
    ],
)
def test_probe_reads_the_images_user(tree: Tree, user: object, facts: RemoveIpcFacts) -> None:
    assert CHECK.probe(machine(tree, user)) == facts


@pytest.mark.parametrize("answer", [None, [], "text"])
def test_an_image_that_docker_does_not_have_or_describe_is_passed_over(tree: Tree, answer: object) -> None:
    host = machine(tree, "1000")
    path = tree.root / ".sparkd/docker/images/x/vllm:1/json.json"
    path.unlink()
    if answer is not None:
        tree.docker("/images/x/vllm:1/json", answer)
    assert CHECK.probe(host).image_user is None


def test_without_docker_nothing_is_known_and_without_logind_nothing_is_removed(tree: Tree) -> None:
    own = replace(CHECK, host_ipc=False)
    assert own.judge(own.probe(Host(tree.root))).reason == "the container has its own /dev/shm"
    assert CHECK.probe(Host(tree.root)) == RemoveIpcFacts(removes=False)
    tree.file("/usr/lib/systemd/systemd-logind")
    assert CHECK.probe(Host(tree.root)) == RemoveIpcFacts(removes=True)


@pytest.mark.parametrize(
    ("conf", "drop_ins", "removes"),
    [
        pytest.param("[Login]\n#RemoveIPC=no\n", {}, True, id="by itself"),
        pytest.param("[Login]\nRemoveIPC=no\n", {}, False, id="turned off"),
        pytest.param("[Manager]\nRemoveIPC=no\n", {}, True, id="in another section"),
        pytest.param("[Login]\nRemoveIPC=no\n", {"a": "[Login]\nRemoveIPC=yes\n"}, True, id="a drop-in goes before"),
        pytest.param("", {"b": "[Login]\nRemoveIPC=off\n", "a": "[Login]\nRemoveIPC=yes\n"}, False, id="the last one"),
    ],
)
def test_logind_is_set_by_its_file_and_drop_ins(tree: Tree, conf: str, drop_ins: dict[str, str], removes: bool) -> None:
    tree.file("/usr/lib/systemd/systemd-logind")
    tree.file("/usr/lib/systemd/logind.conf", "[Login]\nRemoveIPC=no\n")
    tree.file("/etc/systemd/logind.conf", conf)
    for name, text in drop_ins.items():
        tree.file(f"/etc/systemd/logind.conf.d/{name}.conf", text)
    tree.link("/etc/systemd/logind.conf.d/z.conf", "/dev/null")
    tree.file("/usr/lib/systemd/logind.conf.d/z.conf", "[Login]\nRemoveIPC=no\n" if removes else "")
    assert removes_ipc(Host(tree.root).files) is removes
