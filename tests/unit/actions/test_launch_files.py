"""A container's /etc/hosts: the node's own, byte for byte, and below it the names of the nodes."""

import pytest
from tests.tree import Tree

from sparkd.agent.actions.container_bodies import write_hosts
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import LaunchError

NAMES = (("::ffff:10.0.0.1", "sparkd-rank0"), ("fd00::2", "sparkd-rank1"))
ADDED = b"::ffff:10.0.0.1 sparkd-rank0\nfd00::2 sparkd-rank1\n"


@pytest.mark.parametrize(
    ("own", "kept"),
    [
        (None, b""),
        (b"", b""),
        (b"127.0.1.1 spark1\n# mine\n\n", b"127.0.1.1 spark1\n# mine\n\n"),
        (b"127.0.1.1 spark1", b"127.0.1.1 spark1\n"),
        (b"10.0.0.9 nas # \xff\r\n", b"10.0.0.9 nas # \xff\r\n"),
    ],
)
def test_the_nodes_own_lines_stay_and_come_first(tree: Tree, own: bytes | None, kept: bytes) -> None:
    if own is not None:
        tree.file("/etc/hosts", "").write_bytes(own)
    script = tree.root / "run/sparkd/private/launch.sh"
    path = script.with_name("hosts")
    write_hosts(Files(str(tree.root)), script, NAMES)
    assert path.read_bytes() == kept + ADDED
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_file_that_can_not_be_read_fails_the_launch_with_its_name(tree: Tree) -> None:
    tree.folder("/etc/hosts")
    with pytest.raises(LaunchError, match=r"^/etc/hosts can't be read: "):
        write_hosts(Files(str(tree.root)), tree.root / "run/launch.sh", NAMES)
