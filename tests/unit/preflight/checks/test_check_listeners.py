"""What the engine opens to the network: an API on all addresses needs a key."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.plans import ALONE, HEAD, WORKER, plan
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level, ok
from sparkd.agent.preflight.checks.ports import Listeners, ListenersFacts
from sparkd.base.host import Host
from sparkd.base.plan.model import Node, Secret

KEY = {"env": (("VLLM_API_KEY", "x"),)}


@pytest.mark.parametrize(
    ("host", "changed", "level"),
    [
        *((host, {}, Level.WARN) for host in ("--host=0.0.0.0", "--host=::", "--host=0:0::0", "--host")),
        ("--served-model-name=x", {}, Level.WARN),
        ("--host=0.0.0.0", KEY, Level.OK),
        ("--host=0.0.0.0", {"secrets": (Secret("VLLM_API_KEY", "/etc/sparkd/api.key"),)}, Level.OK),
        *((host, {}, Level.OK) for host in ("--api-key=x", "--host=10.0.0.1", "--host=127.0.0.1")),
        ("--host=spark1.lan", {}, Level.OK),
    ],
)
def test_an_api_on_all_addresses_wants_a_key(host: str, changed: dict[str, object], level: Level) -> None:
    for node in (HEAD, ALONE):
        served = replace(plan(node), argv=("vllm", "serve", host), api_port=8123, **changed)
        expect(Listeners(served).judge(ListenersFacts((22,))), level, "port 8123")


def test_a_worker_serves_no_api() -> None:
    open_api = replace(plan(WORKER), argv=("vllm", "serve", "--host=0.0.0.0"))
    assert Listeners(open_api).judge(ListenersFacts((22,))) == ok("this rank serves no API")


@pytest.mark.parametrize(("node", "ports"), [(HEAD, "port 8123; ranks meet on port 29501"), (ALONE, "port 8123")])
def test_the_port_on_which_ranks_meet_is_named_where_they_do(node: Node, ports: str) -> None:
    served = replace(plan(node), argv=("vllm", "serve", "--host=10.0.0.1"), api_port=8123)
    assert Listeners(served).judge(ListenersFacts((22,))) == ok(f"the API on 10.0.0.1: {ports}")


def test_a_program_that_listens_on_all_addresses_is_evidence(tree: Tree) -> None:
    tree.listening((22, 1), (9100, 2))
    assert Listeners(plan()).probe(Host(tree.root)) == ListenersFacts((22, 9100))
