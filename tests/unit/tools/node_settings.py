"""A node on which `sparkd init` runs: a recipe of its own, what is written there, and its removal."""

import json
import tomllib

from tests.machines.areas import docker
from tests.tree import Tree

from sparkd.base.host import Host
from sparkd.tools.setup.node_files import NodeFiles

TOML, KEY, OWN = "/etc/sparkd/sparkd.toml", "/etc/sparkd/cluster.key", "/etc/sparkd/conf.d/10-init.toml"
HEAD_OWN, HEAD_PUBLIC = "/etc/sparkd/head.key", "/etc/sparkd/head.pub"
PAIR = ["10.0.0.1", "10.0.0.2"]


def files(tree: Tree) -> dict[str, str]:
    """Texts of the files that a command may change, by their paths."""
    folders = ("/etc/sparkd", "/etc/systemd", "/var/lib/sparkd")
    paths = (path for folder in folders for path in tree.path(folder).rglob("*"))
    return {str(path): path.read_text(errors="replace") for path in paths if path.is_file() and path.suffix != ".bin"}


def settings(tree: Tree) -> dict[str, dict[str, object]]:
    """The settings that `init` wrote."""
    return tomllib.loads(tree.path(OWN).read_text())


def own_recipe(tree: Tree, name: str = "mine", **more: object) -> None:
    """A recipe of an administrator for one node, whose model and image are there."""
    keys = {"schema": 1, "name": name, "model": {"path": "Small"}, "image": {"ref": docker.IMAGE}, **more}
    tree.file(f"/etc/sparkd/recipes/{name}.yaml", json.dumps(keys))
    tree.safetensors("/srv/models/Small/model.safetensors")
    for file in ("config", "tokenizer"):
        tree.file(f"/srv/models/Small/{file}.json", "{}")


def take_back(tree: Tree) -> list[str]:
    """The lines of `sparkd deinit`."""
    return NodeFiles(Host(tree.root), {}).take_back()
