"""The order of `sparkd init`: look at the node, choose recipe and nodes, write, let others join, say what is next."""

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
from sparkd.base.recipes.loader import find_recipes, load_recipe, recipe_folders
from sparkd.base.recipes.schema import Recipe
from sparkd.tools.models.ssh import SshHost
from sparkd.tools.node.dry_run import look_at
from sparkd.tools.node.fit import Fit, find_fits
from sparkd.tools.node.recipe_lint import try_recipe
from sparkd.tools.node.render import CONFIGURATION, parts
from sparkd.tools.setup import cluster_key
from sparkd.tools.setup.node_files import NodeFiles, Values, updated
from sparkd.tools.setup.safe_endpoint import Additions, Offers, describe_endpoint
from sparkd.tools.setup.survey import Survey, describe, group, propose_addresses, reason, take_survey

if TYPE_CHECKING:
    from sparkd.tools.setup.join import Guest

NAME_WIDTH, LINE_LIMIT = 8, 400


class Wishes(Struct, frozen=True):
    """What a person wants, as far as it is said."""

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
    fit: Fit
    """The recipe to serve, and how it fits."""
    nodes: tuple[str, ...] = ()
    """Fabric addresses that are known, the head's first; empty for one node."""
    missing: int = 0
    """Nodes that are still to join."""

    def commands(self, *, complete: bool) -> Iterator[str]:
        """Commands to run before the start. `complete`: the other nodes lack nothing."""
        yield from (lack.command or lack.reason for lack in self.fit.lacks)
        if self.nodes and not complete:
            yield "sparkd model sync && sparkd image sync   # to the other nodes, what they lack"


@dataclass(frozen=True)
class Wizard:
    wishes: Wishes
    files: NodeFiles
    show_line: Callable[[str], None]
    prompt: Callable[[str], str]
    """A question's answer. Raises UsageError where none comes."""

    @property
    def host(self) -> Host:
        return self.files.host

    def serve(self) -> None:
        """Set up a node alone, or a head with the nodes that join it."""
        settings = self.files.load().settings
        survey = self._survey(settings)
        known = tuple(map(canonical, settings.cluster.nodes))
        if len(known) > 1 and find_place(settings, self.host).rank:
            self._show([("role", f"a worker of {known[0]}: to change it, run `sparkd init` there")])
            self._finish(settings, "worker", (), changed=False)
            return
        choice = self._choose(settings, survey, known)
        values: Values = {("engine", "recipe"): choice.fit.recipe}
        if choice.nodes:
            values["cluster", "nodes"] = list(choice.nodes)
        keys = cluster_key.new_files(settings.cluster.key_file) if choice.nodes else ()
        added, files = self._offer(settings, choice.fit)
        complete, served, values, keys = False, values, values | added, (*keys, *files)
        changes = list(self.files.changes(values, settings, keys))
        changed = any(self.files.changes(values, settings))  # keys are read again without a restart
        self._show(zip(("writes", *[""] * len(changes)), changes or ["nothing: all of it is there"], strict=False))
        if not self.wishes.plan:
            if (changes or choice.missing) and not self._confirmed():
                return
            with self.files.setup.alone():
                self.files.write(values, keys)
                guests = self._invite(choice, values, settings.cluster.key_file) if choice.missing else []
            settings = self.files.load().settings
            complete = self._compare(settings, survey, guests)
        elif not choice.missing:
            settings = settings.model_copy(update=updated(settings, served))
        test = ["sudo sparkd notify test"] * (("notify", "webhook_file") in values)
        commands = (*choice.commands(complete=complete), *test)
        self._finish(settings, "head", commands, changed=changed, added=added)

    def _offer(self, settings: Settings, fit: Fit) -> Additions:
        """A key of the API and messages, as wished or agreed to."""
        plan = try_recipe(self._recipe(fit.recipe)[0], settings, fit.nodes).plan
        offers = Offers(self.files, plan, None if self.wishes.yes or self.wishes.plan else self.prompt)
        (values, keys), (more, files) = offers.api_key(self.wishes.api_key), offers.messages(self.wishes.webhook_file)
        return values | more, (*keys, *files)

    def join(self, code: str) -> None:
        from sparkd.tools.setup.join_request import accept, confirm

        settings = self.files.load().settings
        own = self._survey(settings).inventory
        early: dict[Key, object] = {("cluster", "follow_head"): True}
        if not self.files.is_persons(("cluster", "nodes")):  # these may be the head's, which the code brings
            early["cluster", "nodes"] = None
        self.files.refuse_overruled(early)
        key = settings.cluster.key_file
        over = " in place of the key that is there" * self.host.files.exists(key)
        self._show([("writes", f"{self.files.init_file}: cluster.nodes, cluster.follow_head")])
        self._show([("", f"{key}: the cluster's key{over}"), ("", f"{head_key.PUBLIC}: the head's public key")])
        if self.wishes.plan or not self._confirmed():
            return
        with self.files.setup.alone():
            code = code or self.prompt("join code: ")
            joined = accept(code)
            values: Values = {("cluster", "nodes"): list(joined.nodes), ("cluster", "follow_head"): True}
            changed = any(self.files.changes(values, settings))
            self.files.write(values, cluster_key.joined_files(key, joined.keys, joined.head_keys))
            confirm(code, replace(own, follows=True))
        self._show([("joined", f"{joined.head_address}, as {joined.own_address}")])
        self._finish(self.files.load().settings, "worker", (), changed=changed)

    def _survey(self, settings: Settings) -> Survey:
        try:
            survey = take_survey(settings, self.host)
        except (OSError, ValueError) as error:
            raise ConfigError(f"this node can't be read: {error}", "sparkd preflight --dry-run names what") from None
        self._show(describe(survey))
        return survey

    def _choose(self, settings: Settings, survey: Survey, known: tuple[str, ...]) -> _Choice:
        """Raises BlockedError where no recipe fits, or this node has no address for others; as `load_recipe`."""
        size = self.wishes.nodes or (len(known) if len(known) > 1 else 2 if self.wishes.invite else None)
        best = self._find_fit(settings, survey, size)
        total = size or best.nodes
        if total < len(known):
            where = self.files.load().origins["cluster.nodes"]
            raise UsageError(f"cluster.nodes names {len(known)} nodes", f"take out those that leave, in {where}")
        if total == 1:
            return _Choice(best)
        nodes = known or (self._own_address(survey),)
        missing, named = total - len(nodes), len(self.wishes.ssh)
        if 0 < missing < named:
            raise UsageError(f"--ssh names {named} nodes, and {missing} are missing", f"--nodes {len(nodes) + named}")
        if missing:
            self.files.refuse_overruled({("cluster", "nodes"): None})
        return _Choice(best, nodes, missing or named or int(self.wishes.invite))

    def _own_address(self, survey: Survey) -> str:
        """The address on the fabric. Raises BlockedError where there is none, and shows how to give the node one."""
        if survey.address:
            return survey.address
        if survey.fabric:
            self.show_line(propose_addresses(survey.fabric))
        hint = "give it one, as above, on each node" if survey.fabric else "connect the nodes: ip -brief link"
        raise BlockedError("this node has no address on a fabric", hint)

    def _find_fit(self, settings: Settings, survey: Survey, size: int | None) -> Fit:
        """The fit of the recipe that a person has chosen, else of the best; on `size` nodes, where that is known."""
        recipe = self.wishes.recipe or settings.engine.recipe
        most = MAX_NODES if size or recipe or not (survey.alone or self.wishes.yes) else 1
        recipes = [self._recipe(recipe)] if recipe else list(self._recipes())
        best, *others = find_fits(recipes, settings, size, most, self.host)
        self._show([("recipe", reason(best)), *(("", line) for line in group(others))])
        if not (best.possible and (recipe or best.reachable)):
            hint = "look at: sparkd recipe list; your own go into /etc/sparkd/recipes: sudo sparkd init --recipe NAME"
            raise BlockedError(f"recipe {best.recipe} can't serve here" if recipe else "no recipe fits this node", hint)
        return best

    def _recipe(self, name: str) -> tuple[Recipe, bool]:
        loaded = load_recipe(name, recipe_folders(self.files.root))
        return loaded.recipe, loaded.files[0].parent != recipes_dir()

    def _recipes(self) -> Iterator[tuple[Recipe, bool]]:
        for name in find_recipes(recipe_folders(self.files.root)):
            try:
                yield self._recipe(name)
            except ConfigError:
                self._show([("", f"{name} is broken: sparkd recipe check {name}")])

    def _invite(self, choice: _Choice, values: Values, key: str) -> list[Guest]:
        """Have nodes join, each of which is written down at once. Raises BlockedError where some have not."""
        from sparkd.tools.setup.join import GRACE_SECONDS, Guest, Invitation

        nodes, joined = list(choice.nodes), list[Guest]()
        keys = read_keys(self.host.files, key, os.geteuid())
        publics = head_key.read_public_halves(self.host.files, os.geteuid())
        with Invitation(nodes[0], choice.nodes, keys, choice.missing, head_keys=publics) as invitation:
            where = f"on {choice.missing} other node(s), within ten minutes; this one waits"
            self._show([("join", f"sudo sparkd init --join   # {where}"), ("code", invitation.code)])
            guests, hosts, failed = invitation.guests(), list(self.wishes.ssh), ""
            while len(joined) < choice.missing:
                if hosts:  # one by one: the next one may fail
                    try:
                        SshHost(hosts.pop(0)).join(invitation.code)
                    except BlockedError as error:
                        self._show([("failed", str(error))])
                        failed = failed or f"{error.reason}; "
                        if hosts:
                            continue
                    if failed and not hosts:
                        invitation.end_in(2 * GRACE_SECONDS)  # its node may have joined before that
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
            new = f"--nodes {choice.fit.nodes}" if choice.fit.nodes > len(choice.nodes) else "--invite"
            late = f"{failed}{len(joined)} of {choice.missing} nodes have joined in time"
            raise BlockedError(late, f"for a new code: sudo sparkd init {new}")
        return joined

    def _show_guest(self, guest: Guest) -> None:
        again = ", again" * guest.known
        self._show([("joined", f"{guest.hostname} ({guest.address}), sparkd {guest.version}{again}")])
        if not guest.knows_head:
            remedy = "then here: sudo sparkd init --invite, and there: sudo sparkd init --join"
            lack = "its older sparkd keeps no public key of this head, so anything may pass for it"
            self._show([("", f"{lack}: there: {head_key.UPDATE}; {remedy}")])

    def _compare(self, settings: Settings, survey: Survey, guests: Sequence[Guest]) -> bool:
        """Show what each node that has joined lacks for the recipe; whether all others are known to have it."""
        complete = len(guests) == len(settings.cluster.nodes) - 1
        with suppress(ConfigError):  # which the check shows
            node = resolve_context(settings, None, self.host)
            for guest in guests:
                there = guest.inventory or "its answer is too long, or of another version"
                peer = Peer(settings.cluster.nodes.index(guest.address), guest.address)
                missing = list(find_missing_elsewhere(node, Inventories(survey.inventory, [(peer, there)])))
                whole = f"{guest.hostname}: {node.recipe.model.path} and its image are there"
                self._show(("recipe", line) for line in missing or [whole])
                complete = complete and not missing
            return complete
        return False

    def _finish(
        self, settings: Settings, role: str, commands: Iterable[str], *, changed: bool, added: Values | None = None
    ) -> None:
        """`added`: settings that are written beside the recipe, whose files are not there yet in a plan."""
        shown = look_at(settings, self.host)
        summary = next(str(line) for line in reversed(parts(shown)) if not str(line).startswith("next:"))
        findings = blocking(shown.findings)
        others = tuple(finding for finding in findings if finding.id != CONFIGURATION)
        if settings.cluster.follow_head and others != findings:  # as it must be, for now
            findings, good = others, sum(finding.verdict.level is Level.OK for finding in shown.findings)
            summary = f"{good} ok; the others run when the head's configuration has come"
        lines = (f"{finding.verdict.level.value} {finding.id}: {finding.verdict.reason}" for finding in findings)
        self._show([("check", summary), *(("", line) for line in lines)])
        if role == "head":
            with suppress(ConfigError, OSError):  # which the check shows
                protected = settings.model_copy(update=updated(settings, added or {}))
                self._show(describe_endpoint(resolve_context(protected, None, self.host), self.host))
        start = f"sudo systemctl enable --now sparkd-{role}"
        if shown.owner is not None:
            start = f"sudo systemctl restart sparkd-{role}   # it runs" if changed else "sparkd status   # it runs"
        self._show(("next", line) for line in (*commands, start))

    def _show(self, rows: Iterable[tuple[str, str]]) -> None:
        for name, text in rows:
            self.show_line(f"{name:{NAME_WIDTH}}{GAP}{sanitize(text, LINE_LIMIT)}")

    def _confirmed(self) -> bool:
        if self.wishes.yes or self.prompt("write it? [Y/n] ").strip().lower() in ("", "y", "yes"):
            return True
        self.show_line("nothing is written; nothing is to be done")
        return False
