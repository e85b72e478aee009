"""Plans to switch to, and the file that has the switch of a node."""

from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.known_good_entries import RECIPE, SETTINGS

from sparkd.base.cluster import membership
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.state.switch import FILE, Chosen, Switch

LATER = "2999-01-01T00:00:00+00:00"


def plan_of(name: str, until: str = "") -> Chosen:
    """A plan by the recipe of that name."""
    return Chosen(RECIPE.model_copy(update={"name": name}), SETTINGS.engine, until=until)


def put_switch(tree: Tree, switch: Switch, config: Settings | None = None) -> Switch:
    """Write the switch to the file, as one from `config` where that is given."""
    if config is not None:
        switch = replace(switch, replaces=membership.fingerprint_config(config, Host(tree.root)))
    tree.file(FILE.path, FILE.encode(switch))
    return switch


def switch_in(tree: Tree) -> Switch | None:
    """The switch in the file, if any."""
    return FILE.read(Host(tree.root).files)
