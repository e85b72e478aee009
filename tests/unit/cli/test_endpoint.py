"""`sparkd endpoint`: the address that clients reach, the length of context, the key's file, and whether it serves."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit import plans
from tests.unit.commands import sparkd
from tests.unit.nodes import report
from tests.unit.plans import HEAD, WORKER, configured

from sparkd.base.cluster.endpoint import find_address, find_key
from sparkd.base.cluster.membership import NodeContext
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.plan.model import Node
from sparkd.base.status.model import Contact, NodeReport, PeerStatus, Phase, dump
from sparkd.tools.node.endpoint import context_tokens, read_state, request_lines

KEYED = {"secrets": {"VLLM_API_KEY": "/etc/sparkd/api.key"}}


@pytest.mark.parametrize(
    ("node", "host", "address", "note"),
    [
        (plans.ALONE, "192.168.1.7", "192.168.1.7", ""),
        (plans.ALONE, "127.0.0.1", "127.0.0.1", "the API listens on loopback only"),
        (plans.ALONE, None, "127.0.0.1", "no route to other networks"),
        (HEAD, "0.0.0.0", "10.0.0.1", "no route to other networks"),
        (WORKER, "0.0.0.0", "10.0.0.1", "the head's address on the fabric"),
        (WORKER, "::", "10.0.0.1", "the head's address on the fabric"),
    ],
)
def test_the_address_is_one_that_clients_reach(
    node: Node, host: str | None, address: str, note: str, tree: Tree
) -> None:
    plan = plans.plan(node, args={"host": host} if host else {})
    found, note_text = find_address(plan, Host(tree.root))
    assert (found, note in note_text, bool(note_text)) == (address, True, bool(note))


def test_on_a_machine_with_a_route_it_is_the_machines_own_address() -> None:
    host = Host()
    address, note = find_address(plans.plan(args={"host": "0.0.0.0"}), host)
    assert note or address in host.addresses()


@pytest.mark.parametrize(("flag", "tokens"), [("128K", 131_072), (200_000, 200_000), ("auto", None), (None, 4096)])
def test_the_context_is_the_flags_else_the_models(flag: str | int | None, tokens: int | None, tree: Tree) -> None:
    tree.file("/srv/models/m/config.json", '{"max_position_embeddings": 4096}')
    plan = plans.plan(args={"max-model-len": flag} if flag else {})
    assert context_tokens(plan, Host(tree.root)) == tokens


def test_with_a_script_of_the_users_own_the_context_is_not_known(tree: Tree) -> None:
    settings = configured(engine={"script": "/srv/own.sh"})
    assert context_tokens(plans.plan(plans.ALONE, settings, args={"max-model-len": 4096}), Host(tree.root)) is None


def reported(tree: Tree, one: NodeReport) -> Host:
    """By an agent that runs."""
    tree.file("/run/sparkd/report.json", dump(one))
    return Host(tree.root)


@pytest.fixture
def agent(tree: Tree) -> dict[str, int]:
    tree.process(77, "sparkd", start_time=5)
    return {"pid": 77, "start_time": 5}


def test_a_worker_reports_what_its_head_does(tree: Tree, agent: dict[str, int]) -> None:
    head = report(0, phase=Phase.LOADING, message="loading weights 12/46")
    for contact, serving, text in (
        (Contact.ANSWERS, False, "loading: loading weights 12/46"),
        (Contact.SILENT, False, "the head does not answer"),
    ):
        peer = PeerStatus("10.0.0.1", 0, contact, head.since, head)
        state = read_state(reported(tree, report(1, phase=Phase.SERVING, peers=(peer,), **agent)))
        assert (state.serving, text in state.text) == (serving, True)


@pytest.mark.parametrize(("phase", "serving"), [(one, one in (Phase.SERVING, Phase.DEGRADED)) for one in Phase])
def test_it_serves_in_two_phases(phase: Phase, serving: bool, tree: Tree, agent: dict[str, int]) -> None:
    assert read_state(reported(tree, report(0, phase=phase, **agent))).serving is serving


def test_a_report_of_an_agent_that_is_gone_says_nothing(tree: Tree) -> None:
    state = read_state(reported(tree, report(0, phase=Phase.SERVING, pid=99_999, start_time=1)))
    assert (state.serving, "no agent runs" in state.text) == (False, True)


def test_the_key_is_named_by_its_file_and_never_read(tmp_path: Path) -> None:
    (tmp_path / "api.key").write_text("sk-very-secret-content")
    (tmp_path / "sparkd.toml").write_text(
        f'[engine]\nrecipe = "tiny-cpu"\n[engine.secrets]\nVLLM_API_KEY = "{tmp_path}/api.key"\n'
    )
    config = tmp_path / "sparkd.toml"
    shown = json.loads(sparkd("endpoint", "--json", config=config).stdout)
    texts = sparkd("endpoint", config=config).stdout + sparkd("endpoint", "--client", "curl", config=config).stdout
    assert shown["key_file"] == f"{tmp_path}/api.key"
    assert shown["keyed"] is True
    assert shown["prompt_tokens"] + shown["answer_tokens"] == shown["context_tokens"] == 512
    assert "at most 384 of prompt" in texts
    assert f"{tmp_path}/api.key" in texts
    assert f"sudo sed 's/^/Authorization: Bearer /' {tmp_path}/api.key |" in texts
    assert "sk-very-secret" not in texts + json.dumps(shown)


@pytest.mark.parametrize("file", ["/etc/sparkd/api.key", ""])
def test_a_key_is_needed_also_where_its_file_is_on_the_head(file: str) -> None:
    settings = Settings()
    engine = settings.engine.model_copy(update={"secrets": {"VLLM_API_KEY": file}})
    shared = settings.model_copy(update={"engine": engine})
    assert find_key(NodeContext(plans.plan(WORKER, shared), shared, plans.recipe(), settings)) == (True, file)
    assert find_key(NodeContext(plans.plan(WORKER), settings, plans.recipe(), settings)) == (False, "")
    assert find_key(NodeContext(plans.plan(HEAD), settings, plans.recipe(**KEYED), settings))[0]


def test_a_wrong_configuration_is_a_reason_with_a_hint_and_78() -> None:
    done = sparkd("endpoint", SPARKD_ENGINE__RECIPE="none-such")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (78, "", 2)


@pytest.mark.parametrize(("key", "end"), [("sk-x", ""), ("sk-x", "\n"), ("", "")])
def test_the_request_that_is_shown_works_and_no_process_has_the_key_as_an_argument(
    tmp_path: Path, key: str, end: str
) -> None:
    file = tmp_path / "a 'key'"
    file.write_text(key + end)
    curl, arguments, stdin = (tmp_path / name for name in ("curl", "arguments", "stdin"))
    (tmp_path / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    curl.write_text(f'#!/bin/sh\necho "$@" >{arguments}\ncat >{stdin}\n')
    for program in (curl, tmp_path / "sudo"):
        program.chmod(0o755)
    command = "\n".join(request_lines("http://192.168.1.7:8000/v1", str(file) if key else ""))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["/bin/sh", "-c", command], env=env, stdin=subprocess.DEVNULL, check=True)
    assert stdin.read_text() == (f"Authorization: Bearer {key}{end}" if key else "")
    assert arguments.read_text() == f"{'-H @- ' if key else ''}http://192.168.1.7:8000/v1/models\n"
