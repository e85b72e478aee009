"""What `sparkd init` writes on a node."""

import tomllib

from tests.tree import Tree

TOML, KEY, OWN = "/etc/sparkd/sparkd.toml", "/etc/sparkd/cluster.key", "/etc/sparkd/conf.d/10-init.toml"
HEAD_OWN, HEAD_PUBLIC = "/etc/sparkd/head.key", "/etc/sparkd/head.pub"
PAIR = ["10.0.0.1", "10.0.0.2"]


def files(tree: Tree) -> dict[str, str]:
    folders = ("/etc/sparkd", "/etc/systemd", "/var/lib/sparkd")
    paths = (path for folder in folders for path in tree.path(folder).rglob("*"))
    return {str(path): path.read_text(errors="replace") for path in paths if path.is_file() and path.suffix != ".bin"}


def settings(tree: Tree) -> dict[str, dict[str, object]]:
    """What `init` wrote."""
    return tomllib.loads(tree.path(OWN).read_text())
