"""The nodes that a copy goes to: all others, or those that are named; each gets its own, whatever fails on another."""

import argparse
from pathlib import Path

import pytest
from tests.tree import Tree

from sparkd.base.config import Settings
from sparkd.base.config.settings import Cluster
from sparkd.base.host import Host
from sparkd.base.lib.errors import BlockedError, ExitCode, UsageError
from sparkd.tools.cli.parser import add_targets
from sparkd.tools.models import peers
from sparkd.tools.models.ssh import SshHost

NODES = Settings(cluster=Cluster(nodes=("10.0.0.1", "10.0.0.2", "10.0.0.3")))


@pytest.fixture
def second(tmp_path: Path) -> Host:
    """The machine that owns 10.0.0.2."""
    tree = Tree(tmp_path / "machine")
    tree.file("/proc/net/fib_trie", "Local:\n  |-- 10.0.0.2\n     /32 host LOCAL\n")
    return Host(tree.root)


def parse_arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_targets(parser)
    parser.add_argument("model", nargs="*")
    return parser.parse_args(words)


def choose_peers(words: tuple[str, ...], settings: Settings, host: Host) -> tuple[SshHost, ...]:
    arguments = parse_arguments(*words)
    return peers.choose_peers(arguments.to, arguments.user, settings, host)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), (SshHost("10.0.0.1"), SshHost("10.0.0.3"))),
        (("--user", "ann"), (SshHost("10.0.0.1", "ann"), SshHost("10.0.0.3", "ann"))),
        (("--to", "spark_3", "--to", "fe80::1%eth0", "--to", "spark_3"), (SshHost("spark_3"), SshHost("fe80::1%eth0"))),
    ],
)
def test_a_copy_goes_to_every_other_node_or_to_those_that_are_named(
    second: Host, words: tuple[str, ...], expected: tuple[SshHost, ...]
) -> None:
    assert choose_peers(words, NODES, second) == expected


@pytest.mark.parametrize(
    "words", [("--to=-oProxyCommand=x",), ("--to=a b",), ("--to=a;b",), ("--user=-x",), ("--user=a b",), ("--to=",)]
)
def test_what_ssh_would_read_as_more_than_a_name_is_refused(second: Host, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        choose_peers(words, NODES, second)


def test_what_is_copied_is_never_taken_for_one_more_node() -> None:
    assert parse_arguments("--to", "spark3", "My-Model").model == ["My-Model"]


def test_nothing_is_copied_onto_itself(second: Host) -> None:
    with pytest.raises(UsageError, match=r"10\.0\.0\.2 is this node itself"):
        choose_peers(("--to", "10.0.0.3", "--to", "10.0.0.2"), NODES, second)


def test_a_node_alone_has_nobody_to_copy_to(second: Host) -> None:
    with pytest.raises(UsageError, match="names no other node"):
        choose_peers((), Settings(), second)


def test_a_step_that_fails_on_one_node_is_taken_on_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    served = []

    def act(peer: SshHost) -> None:
        if peer.address == "a":
            raise BlockedError("a: its disk is full")
        served.append(peer.address)

    assert peers.run_on_each((SshHost("a"), SshHost("b")), act) is ExitCode.BLOCKED
    assert served == ["b"]
    assert capsys.readouterr().err == "sparkd: a: its disk is full\n"
