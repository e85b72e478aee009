"""The endpoint for its clients: the address that they reach, the context's length, the key's file, and its state."""

import subprocess
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit import plans
from tests.unit.nodes import report
from tests.unit.plans import HEAD, WORKER, configured

from sparkd.base.cluster.endpoint import find_address, find_key_file
from sparkd.base.cluster.membership import NodeContext
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.plan.model import Node
from sparkd.base.status.model import Contact, NodeReport, PeerStatus, Phase, dump
from sparkd.tools.node.endpoint import State, context_tokens, read_state, request_lines


@pytest.mark.parametrize(
    ("node", "host", "address", "note"),
    [
        (plans.ALONE, "192.168.1.7", "192.168.1.7", ""),
        (plans.ALONE, "127.0.0.1", "127.0.0.1", "the API listens on loopback only"),
        (plans.ALONE, None, "127.0.0.1", "this node has no route to other networks: "),
        (HEAD, "0.0.0.0", "10.0.0.1", "this node has no route to other networks: "),
        (WORKER, "0.0.0.0", "10.0.0.1", "the head's address on the fabric"),
        (WORKER, "::", "10.0.0.1", "the head's address on the fabric"),
        (WORKER, "{node.address}", "10.0.0.1", "the head's address on the fabric"),
        (WORKER, "192.168.1.7", "192.168.1.7", ""),
    ],
)
def test_the_address_is_one_that_clients_reach(
    node: Node, host: str | None, address: str, note: str, tree: Tree
) -> None:
    plan = plans.plan(node, args={"host": host} if host else {})
    reached, explanation = find_address(plan, Host(tree.root))
    assert reached == address
    assert explanation.startswith(note)
    assert bool(explanation) is bool(note)


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


def state_by(tree: Tree, node_report: NodeReport) -> State:
    """The state by the report of an agent with pid 77 and start time 5; one such process runs."""
    tree.process(77, "sparkd", start_time=5)
    tree.file("/run/sparkd/report.json", dump(node_report))
    return read_state(Host(tree.root))


@pytest.mark.parametrize(
    ("contact", "text"),
    [(Contact.ANSWERS, "loading: loading weights 12/46"), (Contact.SILENT, "the head does not answer: sparkd status")],
)
def test_a_worker_reports_the_state_of_its_head(tree: Tree, contact: Contact, text: str) -> None:
    head = report(0, phase=Phase.LOADING, message="loading weights 12/46")
    peers = (PeerStatus("10.0.0.1", 0, contact, head.since, head),)
    assert state_by(tree, report(1, phase=Phase.SERVING, peers=peers, pid=77, start_time=5)) == State(False, text)


@pytest.mark.parametrize("phase", Phase)
def test_it_serves_in_two_phases(phase: Phase, tree: Tree) -> None:
    state = state_by(tree, report(0, phase=phase, pid=77, start_time=5))
    assert state.serving is (phase in (Phase.SERVING, Phase.DEGRADED))


def test_a_report_of_an_agent_that_is_gone_says_nothing(tree: Tree) -> None:
    state = state_by(tree, report(0, phase=Phase.SERVING, pid=77, start_time=4))
    assert state == State(False, "no agent runs on this node: sparkd status")


@pytest.mark.parametrize("file", ["/etc/sparkd/api.key", ""])
def test_a_key_is_needed_also_where_its_file_is_on_the_head(file: str) -> None:
    own = Settings()
    engine = own.engine.model_copy(update={"secrets": {"VLLM_API_KEY": file}})
    shared = own.model_copy(update={"engine": engine})
    assert find_key_file(NodeContext(plans.plan(WORKER, shared), shared, plans.recipe(), own)) == (True, file)


def test_without_a_secret_of_that_name_no_key_is_needed() -> None:
    assert find_key_file(NodeContext(plans.plan(WORKER), Settings(), plans.recipe(), Settings())) == (False, "")


def test_a_key_of_the_recipe_is_needed() -> None:
    keyed = plans.recipe(secrets={"VLLM_API_KEY": "/etc/sparkd/api.key"})
    assert find_key_file(NodeContext(plans.plan(HEAD), Settings(), keyed, Settings()))[0]


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
