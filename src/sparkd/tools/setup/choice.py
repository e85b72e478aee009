"""What `sparkd init` sets up: the wishes of a person, and the recipe and nodes that come of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from shlex import join

from msgspec import Struct

from sparkd.base.config import Settings
from sparkd.base.config.settings import MAX_NODES
from sparkd.base.lib import REINSTALL, recipes_dir
from sparkd.base.lib.errors import BlockedError, ConfigError, UsageError
from sparkd.base.lib.text import counted
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import find_recipes, recipe_folders
from sparkd.tools.node.fit import Candidate, Fit, find_fits
from sparkd.tools.node.recipe_lint import try_recipe
from sparkd.tools.setup.node_files import NodeFiles
from sparkd.tools.setup.survey import Survey, describe_fit, describe_others, format_rows, propose_addresses


class Wishes(Struct, frozen=True):
    """The options of a person; without them a default or a question decides."""

    recipe: str = ""
    nodes: int | None = None
    invite: bool = False
    ssh: tuple[str, ...] = ()
    """Nodes that are to join by ssh."""
    plan: bool = False
    """Only show what would be written."""
    yes: bool = False
    """Write without a question."""
    api_key: bool | None = None
    """Whether the API gets a key; None: a person decides."""
    webhook_file: str = ""
    """File with the URL for messages."""


class Choice(Struct, frozen=True):
    """The recipe and the nodes to set up."""

    fit: Fit
    """The recipe to serve, and how it fits."""
    nodes: tuple[str, ...] = ()
    """Fabric addresses that are known, the head's first; empty for one node."""
    missing: int = 0
    """Nodes that are still to join."""
    most_nodes: int = MAX_NODES
    """How many nodes there may be once they have joined."""
    limit_reason: str = ""
    """Why there may be no more."""

    def commands(self, *, complete: bool) -> Iterator[str]:
        """Yield commands to run before the start. `complete`: the other nodes lack nothing."""
        yield from (lack.command or lack.reason for lack in self.fit.lacks)
        if self.nodes and not complete:
            yield "sparkd model sync && sparkd image sync   # to the other nodes, what they lack"


@dataclass(frozen=True)
class Chooser:
    """Chooses recipe and nodes for one node, and shows the reasons."""

    wishes: Wishes
    files: NodeFiles
    show_line: Callable[[str], None]

    def choose(self, settings: Settings, survey: Survey, cluster: tuple[str, ...]) -> Choice:
        """The recipe and the nodes. `cluster`: its nodes by the settings.

        Raises BlockedError, ConfigError; UsageError for options that contradict the settings.
        """
        known_total = self._find_known_total(cluster)
        fit = self._find_fit(settings, survey, known_total)
        total = known_total or fit.nodes
        if total < len(cluster):
            origin = self.files.load().origins["cluster.nodes"]
            raise UsageError(f"cluster.nodes names {len(cluster)} nodes", f"take out those that leave, in {origin}")
        if total == 1:
            if not (known_total or self.wishes.recipe or settings.engine.recipe):
                self._offer_two_nodes(survey)
            return Choice(fit)
        nodes = cluster or (self._find_own_address(survey),)
        if missing := total - len(nodes):
            self._refuse_surplus(missing, len(nodes))
            self.files.refuse_fixed("cluster", "nodes")
        joining = missing or len(self.wishes.ssh) or int(self.wishes.invite)
        return Choice(fit, nodes, joining, *self._find_limit(fit, settings, len(nodes), joining))

    def _find_limit(self, fit: Fit, settings: Settings, node_count: int, joining: int) -> tuple[int, str]:
        """How many nodes there may be once so many have joined, some of which may be known; and why no more."""
        try:
            self.files.refuse_fixed("cluster", "nodes")
        except ConfigError as error:
            return node_count, error.reason
        recipe = self._load(fit.recipe).recipe
        counts = range(min(MAX_NODES, node_count + joining), node_count, -1)
        most_nodes = next((count for count in counts if try_recipe(recipe, settings, count).plan), node_count)
        return most_nodes, f"recipe {fit.recipe} is for no more" * (most_nodes < MAX_NODES)

    def _find_known_total(self, cluster: tuple[str, ...]) -> int | None:
        """The number of nodes by options and settings; None where the best recipe decides."""
        several = self.wishes.invite or self.wishes.ssh or len(cluster) > 1
        return self.wishes.nodes or (max(len(cluster), 1 + len(self.wishes.ssh), 2) if several else None)

    def _refuse_surplus(self, missing: int, node_count: int) -> None:
        """Raise UsageError where --ssh names more nodes than are missing."""
        if missing < (by_ssh := len(self.wishes.ssh)):
            raise UsageError(
                f"--ssh names {counted(by_ssh, 'node')}, more than are missing: {missing}",
                f"sudo sparkd init --nodes {node_count + by_ssh} {join(f'--ssh={host}' for host in self.wishes.ssh)}",
            )

    def _offer_two_nodes(self, survey: Survey) -> None:
        """Say how, where a cable of the fabric is in: a node without any address does not answer there."""
        if survey.fabric and survey.fabric.hcas:
            self.show_line(*format_rows("", f"two nodes, by {survey.fabric.link.name}: sudo sparkd init --nodes 2"))

    def _find_own_address(self, survey: Survey) -> str:
        """The address on the fabric. Raises BlockedError without one, after showing how to give the node one."""
        if survey.address:
            return survey.address
        if survey.fabric:
            self.show_line(propose_addresses(survey.fabric))
        hint = "give it one, as above, on each node" if survey.fabric else "connect the nodes: ip -brief link"
        raise BlockedError("this node has no address on a fabric", hint)

    def _find_fit(self, settings: Settings, survey: Survey, nodes: int | None) -> Fit:
        """The fit of the recipe that is wished or configured, else the best one. `nodes`: their number, where known.

        Raises BlockedError, ConfigError.
        """
        recipe = self.wishes.recipe or settings.engine.recipe
        most_nodes = MAX_NODES if nodes or recipe or not (survey.alone or self.wishes.yes) else 1
        candidates = [self._load(recipe)] if recipe else list(self._load_all())
        if not candidates:
            hint = f"sparkd recipe check\nwhere none is there: {REINSTALL}"
            raise BlockedError("no recipe on this node can be read", hint)
        best, *others = find_fits(candidates, settings, nodes, most_nodes, self.files.host)
        for line in format_rows("recipe", describe_fit(best), *describe_others(others)):
            self.show_line(line)
        if not (best.possible and (recipe or best.reachable)):
            hint = "look at: sparkd recipe list; your own go into /etc/sparkd/recipes: sudo sparkd init --recipe NAME"
            raise BlockedError(f"recipe {best.recipe} can't serve here" if recipe else "no recipe fits this node", hint)
        return best

    def _load(self, name: str) -> Candidate:
        """The recipe of that name or path. Raises ConfigError."""
        loaded = load_recipe(name, recipe_folders(self.files.root))
        return Candidate(name, loaded.recipe, loaded.files[0].parent != recipes_dir())

    def _load_all(self) -> Iterator[Candidate]:
        for name in find_recipes(recipe_folders(self.files.root)):
            try:
                yield self._load(name)
            except ConfigError:
                self.show_line(*format_rows("", f"{name} is broken: sparkd recipe check {name}"))
