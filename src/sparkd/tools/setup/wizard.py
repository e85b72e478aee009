"""The steps of `sparkd init`: survey the node, choose recipe and nodes, write, let others join, show what is next."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING

from msgspec.structs import replace

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.runner import blocking
from sparkd.base.cluster import head_key
from sparkd.base.cluster.auth import read_keys
from sparkd.base.cluster.membership import Peer, find_place, resolve_context
from sparkd.base.config import Settings
from sparkd.base.config.layers import Key
from sparkd.base.config.units import ROLES
from sparkd.base.host import Host
from sparkd.base.host.files import Files
from sparkd.base.host.network import canonical
from sparkd.base.host.units import enabled_services
from sparkd.base.lib.errors import BlockedError, ConfigError, UsageError
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import recipe_folders
from sparkd.tools.models.ssh import SshHost
from sparkd.tools.node.dry_run import examine_settings
from sparkd.tools.node.fit import Fit
from sparkd.tools.node.inventory_comparison import Inventories, find_missing_elsewhere
from sparkd.tools.node.recipe_lint import try_recipe
from sparkd.tools.node.render import CONFIGURATION, PreflightReport, summarise
from sparkd.tools.setup import cluster_key
from sparkd.tools.setup.choice import Choice, Chooser, Wishes
from sparkd.tools.setup.endpoint_advice import describe_endpoint
from sparkd.tools.setup.node_files import NodeFiles, Values, updated_sections
from sparkd.tools.setup.offers import Draft, Offers
from sparkd.tools.setup.survey import Survey, describe, format_rows, take_survey

if TYPE_CHECKING:
    from sparkd.tools.setup.join import Guest, Refusal


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
            self._show_worker(nodes[0])
            self._finish(settings, "worker", (), changed=False)
            return
        choice = Chooser(self.wishes, self.files, self.show_line).choose(settings, survey, nodes)
        serving, offered = _draft_serving(choice, settings), self._draft_offers(choice.fit, settings)
        values, files = serving.values | offered.values, (*serving.files, *offered.files)
        changes = list(self.files.changes(values, settings, files))
        has_changed = any(self.files.changes(values, settings))  # keys are read again without a restart
        self._show("writes", *(changes or ["nothing: all of it is there"]))
        is_complete = False
        if not self.wishes.plan:
            if (changes or choice.missing) and not self._confirmed():
                return
            with self.files.setup.hold_lock():
                self._refuse_changed(settings)
                # Until a node has joined, a head that serves keeps the settings with which it can start again. With the
                # first of several it gets those for all: it starts again only once the others have joined, too.
                self.files.write(offered.values if choice.missing else values, files)
                guests = self._invite(choice, values, settings.cluster.key_file) if choice.missing else []
            settings = self.files.load().settings
            is_complete = self._compare(settings, survey, guests)
        elif not choice.missing:
            settings = settings.model_copy(update=updated_sections(settings, serving.values))
        commands = list(choice.commands(complete=is_complete))
        if ("notify", "webhook_file") in values:
            commands.append("sudo sparkd notify test")
        has_changed = has_changed or settings.cluster.nodes != nodes
        self._finish(settings, "head", commands, changed=has_changed, offered=offered.values)

    def _show_worker(self, head: str) -> None:
        origin = self.files.load().origins["cluster.nodes"]
        edit = "" if origin.endswith(self.files.init_file) else f"take cluster.nodes out of {origin}; "
        alone = f"{edit}sudo systemctl disable --now sparkd-worker; sudo sparkd deinit; sudo sparkd init"
        to_change = f"a worker of {head}: to change it, run `sparkd init` there"
        self._show("role", to_change, f"where it is gone for good: {alone}")

    def _refuse_changed(self, settings: Settings) -> None:
        """Raises UsageError where these are no more the settings: a node that has joined since would be dropped."""
        if self.files.load().settings != settings:
            raise UsageError("the settings have changed meanwhile: nothing is written", "run it again")

    def _draft_offers(self, fit: Fit, settings: Settings) -> Draft:
        """A key for the API, and messages, by options or where the person agrees."""
        recipe = load_recipe(fit.recipe, recipe_folders(self.files.root)).recipe
        plan = try_recipe(recipe, settings, fit.nodes).plan
        offers = Offers(self.files, plan, None if self.wishes.yes or self.wishes.plan else self.prompt)
        key, messages = offers.api_key(self.wishes.api_key), offers.messages(self.wishes.webhook_file)
        return Draft(key.values | messages.values, (*key.files, *messages.files))

    def join(self, code: str) -> None:
        """Let this node join the cluster of a head, by its code; empty: a person types it. Raises SparkdError."""
        from sparkd.tools.setup.join_request import confirm, fetch_keys

        settings = self.files.load().settings
        own_inventory = self._survey(settings).inventory
        early_values: dict[Key, object] = {("cluster", "follow_head"): True}
        # Nodes in a person's own file may be the same as the head's, which are known only after the join.
        if not self.files.is_set_by_person(("cluster", "nodes")):
            early_values["cluster", "nodes"] = None
        self.files.refuse_overruled(early_values)
        key_file = settings.cluster.key_file
        note = " in place of the key that is there" * self.host.files.exists(key_file)
        settings_line = f"{self.files.init_file}: cluster.nodes, cluster.follow_head"
        key_lines = f"{key_file}: the cluster's key{note}", f"{head_key.PUBLIC}: the head's public key"
        self._show("writes", settings_line, *key_lines)
        if self.wishes.plan or not self._confirmed():
            return
        with self.files.setup.hold_lock():
            code = code or self.prompt("join code: ")
            joined = fetch_keys(code)
            values: Values = {("cluster", "nodes"): list(joined.nodes), ("cluster", "follow_head"): True}
            has_changed = any(self.files.changes(values, settings))
            self.files.write(values, cluster_key.joined_files(key_file, joined.keys, joined.head_keys))
            confirm(code, replace(own_inventory, follows=True))
        self._show("joined", f"{joined.head_address}, as {joined.own_address}")
        self._finish(self.files.load().settings, "worker", (), changed=has_changed)

    def _survey(self, settings: Settings) -> Survey:
        """Take the survey of this node, and show it. Raises ConfigError."""
        try:
            survey = take_survey(settings, self.host)
        except (OSError, ValueError) as error:
            raise ConfigError(f"this node can't be read: {error}", "sparkd preflight --dry-run names what") from None
        for name, *texts in describe(survey):
            self._show(name, *texts)
        return survey

    def _invite(self, choice: Choice, values: Values, key_file: str) -> list[Guest]:
        """Let the missing nodes join. Raises BlockedError if one of them does not."""
        from sparkd.tools.setup.join import GRACE_SECONDS, Guest, Invitation, explain_interrupt

        joined, failure = list[Guest](), ""
        option = f"--nodes {choice.fit.nodes}" if choice.fit.nodes > len(choice.nodes) else "--invite"
        again = f"sudo sparkd init {option}" + f" --recipe {quote(self.wishes.recipe)}" * bool(self.wishes.recipe)
        files = Files(self.host.files.root, os.geteuid())
        keys, head_keys = read_keys(files, key_file), head_key.read_public_halves(files)
        invitation = Invitation(
            choice.nodes[0],
            choice.nodes,
            keys,
            choice.missing,
            head_keys=head_keys,
            most_nodes=choice.most_nodes,
            limit_reason=choice.limit_reason,
            again=f"for a new code: {again}",
        )
        with explain_interrupt(joined, again), invitation:
            note = f"on {choice.missing} other node(s), within ten minutes; this one waits"
            self._show("join", f"sudo sparkd init --join   # {note}")
            self._show("code", invitation.code)
            guests, hosts = self._admit(invitation.guests(), choice.nodes, values, joined), list(self.wishes.ssh)
            while len(joined) < choice.missing:
                if hosts:  # one by one
                    reason = self._join_by_ssh(hosts.pop(0), invitation.code)
                    failure = failure or reason
                    if reason and hosts:  # the next one may join
                        continue
                    if failure and not hosts:
                        invitation.end_in(2 * GRACE_SECONDS)  # a node may have joined although its ssh failed
                if next(guests, None) is None:  # the time is over
                    break
        if len(joined) < choice.missing:
            reason = f"{failure}joined in time: {len(joined)} of {choice.missing}"
            raise BlockedError(reason, f"for a new code: {again}")
        return joined

    def _join_by_ssh(self, host: str, code: str) -> str:
        """Let a host of --ssh join, and show what is next there. Returns why it can't, and shows that; else empty."""
        try:
            printed = SshHost(host, otherwise="there by hand: sudo sparkd init --join").join(code)
        except BlockedError as error:
            self._show("failed", str(error))
            return f"{error.reason}; "
        commands = (row[4:].strip() for row in printed.splitlines() if row.startswith("next "))
        self._show("there", *(f"{host}: {command}" for command in commands))
        return ""

    def _admit(
        self, answers: Iterable[Guest | Refusal], nodes: Sequence[str], values: Values, joined: list[Guest]
    ) -> Iterator[Guest]:
        """Show who joins or is refused. Yield each node that joins, once it is in `joined` and in the settings.

        `nodes`: those of the cluster before.
        """
        from sparkd.tools.setup.join import Guest

        for answer in answers:
            if isinstance(answer, Guest):
                joined.append(answer)
                addresses = dict.fromkeys((*nodes, *(guest.address for guest in joined)))
                self.files.write({**values, ("cluster", "nodes"): list(addresses)})
                note = ", again" * answer.known
                self._show("joined", f"{answer.hostname} ({answer.address}), sparkd {answer.version}{note}")
                yield answer
            else:
                self._show("refused", f"{answer.address}: {answer.reason}")

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
                for line in missing or [good_line]:
                    self._show("recipe", line)
                is_complete = is_complete and not missing
            return is_complete
        return False

    def _finish(
        self, settings: Settings, role: str, commands: Iterable[str], *, changed: bool, offered: Values | None = None
    ) -> None:
        """Show a dry run, what protects the endpoint, and the next commands. `changed`: whether settings have changed;
        `offered`: the values of `_draft_offers`, which with the option `plan` are not on disk.
        """
        preflight = examine_settings(settings, self.host)
        self._show_preflight(preflight, settings)
        if role == "head":
            with suppress(ConfigError, OSError):  # the check above shows it
                future_settings = settings.model_copy(update=updated_sections(settings, offered or {}))
                for name, *texts in describe_endpoint(resolve_context(future_settings, None, self.host), self.host):
                    self._show(name, *texts)
        running = preflight.owner.command if preflight.owner is not None else ""
        for command in (*commands, *self._list_starts(role, running, changed=changed)):
            self._show("next", command)

    def _list_starts(self, role: str, running: str, *, changed: bool) -> Iterator[str]:
        """Commands after which this role's agent runs, also after a boot, and no other. `running`: the owner's."""
        enabled = enabled_services(self.host.files)
        other_role = next(name for name in ROLES if name != role)
        if f"sparkd-{other_role}.service" in enabled or running.endswith(f"--role {other_role}"):
            yield f"sudo systemctl disable --now sparkd-{other_role}   # this node is a {role} now"
        is_enabled, runs = f"sparkd-{role}.service" in enabled, running.endswith(f"--role {role}")
        if not (is_enabled and runs):
            yield f"sudo systemctl enable --now sparkd-{role}"
        if runs and changed:
            yield f"sudo systemctl restart sparkd-{role}   # it runs"
        elif runs and is_enabled:
            yield "sparkd status   # it runs"

    def _show_preflight(self, preflight: PreflightReport, settings: Settings) -> None:
        """Show what blocks. A worker that follows its head has no configuration before the first contact with it."""
        summary, findings = summarise(preflight), blocking(preflight.findings)
        others = tuple(finding for finding in findings if finding.id != CONFIGURATION)
        if settings.cluster.follow_head and others != findings:
            findings, good_count = others, sum(finding.verdict.level is Level.OK for finding in preflight.findings)
            summary = f"{good_count} ok; the others run when the head's configuration has come"
        lines = (f"{finding.verdict.level.value} {finding.id}: {finding.verdict.reason}" for finding in findings)
        self._show("check", summary, *lines)

    def _show(self, name: str, *texts: str) -> None:
        for line in format_rows(name, *texts):
            self.show_line(line)

    def _confirmed(self) -> bool:
        """Whether the person agrees to the changes."""
        if self.wishes.yes or self.prompt("write it? [Y/n] ").strip().lower() in ("", "y", "yes"):
            return True
        self.show_line("nothing is written; nothing is to be done")
        return False


def _draft_serving(choice: Choice, settings: Settings) -> Draft:
    """The recipe, and for several nodes their addresses and new keys."""
    values: Values = {("engine", "recipe"): choice.fit.recipe}
    if not choice.nodes:
        return Draft(values)
    values["cluster", "nodes"] = list(choice.nodes)
    return Draft(values, cluster_key.new_files(settings.cluster.key_file))
