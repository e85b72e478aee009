"""The steps of `sparkd init`: survey the node, choose recipe and nodes, write, let others join, show what is next."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.cluster.inventory_comparison import Inventories, find_missing_elsewhere
from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.runner import blocking
from sparkd.base.cluster import head_key
from sparkd.base.cluster.auth import read_keys
from sparkd.base.cluster.membership import Peer, find_place, resolve_context
from sparkd.base.config import Settings
from sparkd.base.config.layers import Key
from sparkd.base.config.settings import MAX_NODES
from sparkd.base.host import Host
from sparkd.base.host.network import canonical
from sparkd.base.lib import recipes_dir
from sparkd.base.lib.errors import BlockedError, ConfigError, UsageError
from sparkd.base.lib.text import GAP, sanitize
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import find_recipes, recipe_folders
from sparkd.base.recipes.schema import Recipe
from sparkd.tools.models.ssh import SshHost
from sparkd.tools.node.dry_run import examine_settings
from sparkd.tools.node.fit import Fit, find_fits
from sparkd.tools.node.recipe_lint import try_recipe
from sparkd.tools.node.render import CONFIGURATION, summarise
from sparkd.tools.setup import cluster_key
from sparkd.tools.setup.node_files import NodeFiles, Values, updated
from sparkd.tools.setup.safe_endpoint import Additions, Offers, describe_endpoint
from sparkd.tools.setup.survey import Survey, describe, describe_fit, describe_others, propose_addresses, take_survey

if TYPE_CHECKING:
    from sparkd.tools.setup.join import Guest

NAME_WIDTH, LINE_LIMIT = 8, 400


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


class _Choice(Struct, frozen=True):
    """The recipe and the nodes to set up."""

    fit: Fit
    """The recipe to serve, and how it fits."""
    nodes: tuple[str, ...] = ()
    """Fabric addresses that are known, the head's first; empty for one node."""
    missing: int = 0
    """Nodes that are still to join."""

    def commands(self, *, complete: bool) -> Iterator[str]:
        """Yield commands to run before the start. `complete`: the other nodes lack nothing."""
        yield from (lack.command or lack.reason for lack in self.fit.lacks)
        if self.nodes and not complete:
            yield "sparkd model sync && sparkd image sync   # to the other nodes, what they lack"


@dataclass(frozen=True)
class Wizard:
    """The dialogue on one node."""

    wishes: Wishes
    files: NodeFiles
    show_line: Callable[[str], None]
    prompt: Callable[[str], str]
    """Returns the answer to a question. Raises UsageError without one."""

    @property
    def host(self) -> Host:
        return self.files.host

    def serve(self) -> None:
        """Set up a node alone, or a head with the nodes that join it."""
        settings = self.files.load().settings
        survey = self._survey(settings)
        nodes = tuple(map(canonical, settings.cluster.nodes))
        if len(nodes) > 1 and find_place(settings, self.host).rank:
            self._show([("role", f"a worker of {nodes[0]}: to change it, run `sparkd init` there")])
            self._finish(settings, "worker", (), changed=False)
            return
        choice = self._choose(settings, survey, nodes)
        values: Values = {("engine", "recipe"): choice.fit.recipe}
        if choice.nodes:
            values["cluster", "nodes"] = list(choice.nodes)
        keys = cluster_key.new_files(settings.cluster.key_file) if choice.nodes else ()
        added, files = self._offer(settings, choice.fit)
        is_complete, serving_values, values, keys = False, values, values | added, (*keys, *files)
        changes = list(self.files.changes(values, settings, keys))
        has_changed = any(self.files.changes(values, settings))  # keys are read again without a restart
        self._show(zip(("writes", *[""] * len(changes)), changes or ["nothing: all of it is there"], strict=False))
        if not self.wishes.plan:
            if (changes or choice.missing) and not self._confirmed():
                return
            with self.files.setup.alone():
                self.files.write(values, keys)
                guests = self._invite(choice, values, settings.cluster.key_file) if choice.missing else []
            settings = self.files.load().settings
            is_complete = self._compare(settings, survey, guests)
        elif not choice.missing:
            settings = settings.model_copy(update=updated(settings, serving_values))
        test_command = ["sudo sparkd notify test"] * (("notify", "webhook_file") in values)
        commands = (*choice.commands(complete=is_complete), *test_command)
        self._finish(settings, "head", commands, changed=has_changed, added=added)

    def _offer(self, settings: Settings, fit: Fit) -> Additions:
        """A key for the API, and messages, by options or where the person agrees."""
        plan = try_recipe(self._load(fit.recipe)[1], settings, fit.nodes).plan
        offers = Offers(self.files, plan, None if self.wishes.yes or self.wishes.plan else self.prompt)
        key_values, key_files = offers.api_key(self.wishes.api_key)
        message_values, message_files = offers.messages(self.wishes.webhook_file)
        return key_values | message_values, (*key_files, *message_files)

    def join(self, code: str) -> None:
        """Let this node join the cluster of a head, by its code; empty: a person types it. Raises SparkdError."""
        from sparkd.tools.setup.join_request import accept, confirm

        settings = self.files.load().settings
        own_inventory = self._survey(settings).inventory
        early_values: dict[Key, object] = {("cluster", "follow_head"): True}
        # Nodes in a person's own file may be the same as the head's, which are known only after the join.
        if not self.files.is_persons(("cluster", "nodes")):
            early_values["cluster", "nodes"] = None
        self.files.refuse_overruled(early_values)
        key_file = settings.cluster.key_file
        note = " in place of the key that is there" * self.host.files.exists(key_file)
        self._show([("writes", f"{self.files.init_file}: cluster.nodes, cluster.follow_head")])
        self._show([("", f"{key_file}: the cluster's key{note}"), ("", f"{head_key.PUBLIC}: the head's public key")])
        if self.wishes.plan or not self._confirmed():
            return
        with self.files.setup.alone():
            code = code or self.prompt("join code: ")
            joined = accept(code)
            values: Values = {("cluster", "nodes"): list(joined.nodes), ("cluster", "follow_head"): True}
            has_changed = any(self.files.changes(values, settings))
            self.files.write(values, cluster_key.joined_files(key_file, joined.keys, joined.head_keys))
            confirm(code, replace(own_inventory, follows=True))
        self._show([("joined", f"{joined.head_address}, as {joined.own_address}")])
        self._finish(self.files.load().settings, "worker", (), changed=has_changed)

    def _survey(self, settings: Settings) -> Survey:
        """Take the survey of this node, and show it. Raises ConfigError."""
        try:
            survey = take_survey(settings, self.host)
        except (OSError, ValueError) as error:
            raise ConfigError(f"this node can't be read: {error}", "sparkd preflight --dry-run names what") from None
        self._show(describe(survey))
        return survey

    def _choose(self, settings: Settings, survey: Survey, cluster: tuple[str, ...]) -> _Choice:
        """The recipe and the nodes. `cluster`: its nodes by the settings. Raises as `_find_fit`, `_find_own_address`;
        UsageError for options that contradict the settings.
        """
        size = self.wishes.nodes or (len(cluster) if len(cluster) > 1 else 2 if self.wishes.invite else None)
        fit = self._find_fit(settings, survey, size)
        total = size or fit.nodes
        if total < len(cluster):
            origin = self.files.load().origins["cluster.nodes"]
            raise UsageError(f"cluster.nodes names {len(cluster)} nodes", f"take out those that leave, in {origin}")
        if total == 1:
            return _Choice(fit)
        nodes = cluster or (self._find_own_address(survey),)
        missing, count = total - len(nodes), len(self.wishes.ssh)
        if 0 < missing < count:
            raise UsageError(f"--ssh names {count} nodes, and {missing} are missing", f"--nodes {len(nodes) + count}")
        if missing:
            self.files.refuse_overruled({("cluster", "nodes"): None})
        return _Choice(fit, nodes, missing or count or int(self.wishes.invite))

    def _find_own_address(self, survey: Survey) -> str:
        """The address on the fabric. Raises BlockedError without one, after showing how to give the node one."""
        if survey.address:
            return survey.address
        if survey.fabric:
            self.show_line(propose_addresses(survey.fabric))
        hint = "give it one, as above, on each node" if survey.fabric else "connect the nodes: ip -brief link"
        raise BlockedError("this node has no address on a fabric", hint)

    def _find_fit(self, settings: Settings, survey: Survey, size: int | None) -> Fit:
        """The fit of the chosen recipe, else the best, on `size` nodes if known. Raises BlockedError, ConfigError."""
        recipe = self.wishes.recipe or settings.engine.recipe
        most_nodes = MAX_NODES if size or recipe or not (survey.alone or self.wishes.yes) else 1
        recipes = [self._load(recipe)] if recipe else list(self._load_all())
        best, *others = find_fits(recipes, settings, size, most_nodes, self.host)
        self._show([("recipe", describe_fit(best)), *(("", line) for line in describe_others(others))])
        if not (best.possible and (recipe or best.reachable)):
            hint = "look at: sparkd recipe list; your own go into /etc/sparkd/recipes: sudo sparkd init --recipe NAME"
            raise BlockedError(f"recipe {best.recipe} can't serve here" if recipe else "no recipe fits this node", hint)
        return best

    def _load(self, name: str) -> tuple[str, Recipe, bool]:
        """The name or path, its recipe, and whether an administrator wrote it. Raises ConfigError."""
        loaded = load_recipe(name, recipe_folders(self.files.root))
        return name, loaded.recipe, loaded.files[0].parent != recipes_dir()

    def _load_all(self) -> Iterator[tuple[str, Recipe, bool]]:
        for name in find_recipes(recipe_folders(self.files.root)):
            try:
                yield self._load(name)
            except ConfigError:
                self._show([("", f"{name} is broken: sparkd recipe check {name}")])

    def _invite(self, choice: _Choice, values: Values, key_file: str) -> list[Guest]:
        """Let the missing nodes join; each one is in the settings at once. Raises BlockedError if one does not join."""
        from sparkd.tools.setup.join import GRACE_SECONDS, Guest, Invitation, explain_interrupt

        nodes, joined = list(choice.nodes), list[Guest]()
        again = f"sudo sparkd init {f'--nodes {choice.fit.nodes}' if choice.fit.nodes > len(nodes) else '--invite'}"
        keys = read_keys(self.host.files, key_file, os.geteuid())
        head_keys = head_key.read_public_halves(self.host.files, os.geteuid())
        invitation = Invitation(nodes[0], choice.nodes, keys, choice.missing, head_keys=head_keys)
        with explain_interrupt(joined, again), invitation:
            note = f"on {choice.missing} other node(s), within ten minutes; this one waits"
            self._show([("join", f"sudo sparkd init --join   # {note}"), ("code", invitation.code)])
            guests, hosts, failure = invitation.guests(), list(self.wishes.ssh), ""
            while len(joined) < choice.missing:
                if hosts:  # of --ssh, one by one: the next one may fail
                    try:
                        SshHost(hosts.pop(0), otherwise="there by hand: sudo sparkd init --join").join(invitation.code)
                    except BlockedError as error:
                        self._show([("failed", str(error))])
                        failure = failure or f"{error.reason}; "
                        if hosts:
                            continue
                    if failure and not hosts:
                        invitation.end_in(2 * GRACE_SECONDS)  # a node may have joined although its ssh failed
                for guest in guests:
                    if isinstance(guest, Guest):
                        joined.append(guest)
                        nodes += [] if guest.address in nodes else [guest.address]
                        self.files.write({**values, ("cluster", "nodes"): nodes})
                        self._show_guest(guest)
                        break
                    self._show([("refused", f"{guest.address}: {guest.reason}")])
                else:  # the time is over
                    break
        if len(joined) < choice.missing:
            reason = f"{failure}{len(joined)} of {choice.missing} nodes have joined in time"
            raise BlockedError(reason, f"for a new code: {again}")
        return joined

    def _show_guest(self, guest: Guest) -> None:
        note = ", again" * guest.known
        self._show([("joined", f"{guest.hostname} ({guest.address}), sparkd {guest.version}{note}")])

    def _compare(self, settings: Settings, survey: Survey, guests: Sequence[Guest]) -> bool:
        """Show what each node that has joined lacks for the recipe. Returns whether all others are known to have it."""
        is_complete = len(guests) == len(settings.cluster.nodes) - 1
        with suppress(ConfigError):  # `_finish` shows it
            node = resolve_context(settings, None, self.host)
            for guest in guests:
                inventory = guest.inventory or "its answer is too long, or of another version"
                peer = Peer(settings.cluster.nodes.index(guest.address), guest.address)
                missing = list(find_missing_elsewhere(node, Inventories(survey.inventory, [(peer, inventory)])))
                good_line = f"{guest.hostname}: {node.recipe.model.path} and its image are there"
                self._show(("recipe", line) for line in missing or [good_line])
                is_complete = is_complete and not missing
            return is_complete
        return False

    def _finish(
        self, settings: Settings, role: str, commands: Iterable[str], *, changed: bool, added: Values | None = None
    ) -> None:
        """Show a dry run, what protects the endpoint, and the next commands. `changed`: whether settings have changed;
        `added`: the values of `_offer`, which with the option `plan` are not on disk.
        """
        preflight = examine_settings(settings, self.host)
        summary = summarise(preflight)
        findings = blocking(preflight.findings)
        others = tuple(finding for finding in findings if finding.id != CONFIGURATION)
        if settings.cluster.follow_head and others != findings:  # it is not there before the first contact
            findings, good_count = others, sum(finding.verdict.level is Level.OK for finding in preflight.findings)
            summary = f"{good_count} ok; the others run when the head's configuration has come"
        lines = (f"{finding.verdict.level.value} {finding.id}: {finding.verdict.reason}" for finding in findings)
        self._show([("check", summary), *(("", line) for line in lines)])
        if role == "head":
            with suppress(ConfigError, OSError):  # the check above shows it
                offered = settings.model_copy(update=updated(settings, added or {}))
                self._show(describe_endpoint(resolve_context(offered, None, self.host), self.host))
        start = f"sudo systemctl enable --now sparkd-{role}"
        if preflight.owner is not None:
            start = f"sudo systemctl restart sparkd-{role}   # it runs" if changed else "sparkd status   # it runs"
        self._show(("next", line) for line in (*commands, start))

    def _show(self, rows: Iterable[tuple[str, str]]) -> None:
        for name, text in rows:
            self.show_line(f"{name:{NAME_WIDTH}}{GAP}{sanitize(text, LINE_LIMIT)}")

    def _confirmed(self) -> bool:
        """Whether the person agrees to the changes."""
        if self.wishes.yes or self.prompt("write it? [Y/n] ").strip().lower() in ("", "y", "yes"):
            return True
        self.show_line("nothing is written; nothing is to be done")
        return False
