"""One configuration for all nodes: the head serves what it runs, and a worker with `cluster.follow_head` runs the same.

A worker starts with the last document that it has kept. Where its head reports another one, it fetches, judges and
keeps that, and ends: the next process runs it. A rank that serves ends only with its head's.
"""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

from msgspec import Struct

from sparkd.agent.cluster.client import UnsignedError
from sparkd.agent.cluster.peer_reader import PeerReader
from sparkd.agent.daemon.context import Agent, Base, Context, beside_or_blocked
from sparkd.agent.daemon.state_store import find_remedy
from sparkd.base.cluster import head_key
from sparkd.base.cluster.auth import SIGNATURE_HEADER
from sparkd.base.cluster.following import followed_context
from sparkd.base.lib.errors import AwaitedError, BlockedError, HeadRefusedError, OutdatedPlanError
from sparkd.base.lib.http_client import HttpError, ReceivedResponse
from sparkd.base.lib.log import Events
from sparkd.base.plan.model import Node
from sparkd.base.state import launch_history, shared_config
from sparkd.base.state.file import LIMIT_BYTES
from sparkd.base.state.shared_config import FILE, Kept, overridden_keys
from sparkd.base.status.model import FindingReport

FETCH_SECONDS = 10.0
AGAIN_SECONDS = 10.0
"""Pause before a refused document is fetched again: a change on this node may end the refusal."""
LOOK_SECONDS = 60.0
"""Pause between two looks for the head's public key."""
KEY = "the head's public key"

T = TypeVar("T")


class HeadFollower(Struct):
    """Follows the head's configuration on a worker, whose own settings `base` has."""

    base: Base
    place: Node
    head: PeerReader
    events: Events
    digest: str = ""
    """Digest of the document in use; empty without one."""
    unproven: HeadRefusedError | None = None
    """Why the last document is not proven to be the head's: this node continues with the one in use."""
    refusal: HeadRefusedError | None = None
    """Why the head's last document is refused."""
    clock: Callable[[], float] = time.monotonic
    _refused: str = ""
    """Digest of the refused document."""
    _fetched_at: float = 0.0
    _looked_at: float = -math.inf

    def check(self) -> None:
        """Raises OutdatedPlanError where another document of the head is kept now, BlockedError where it is refused."""
        report = self.head.status.living
        if report is None or not report.config_digest:
            return
        if report.config_digest == self.digest:
            # The head has this node's configuration (again). Where its key is missing, that stays reported.
            self.refusal = None
            if self.unproven is not None and self.unproven.reason != head_key.missing(self.place.head_address).reason:
                self.unproven = None
            return
        now = self.clock()
        if report.config_digest != self._refused or now - self._fetched_at >= AGAIN_SECONDS:
            self._fetched_at = now
            self._fetch_document()
        refusal = self.refusal or (None if self.digest else self.unproven)
        if refusal is not None:
            raise BlockedError(refusal.reason, refusal.hint)

    def look_for_key(self) -> None:
        """Report a missing key also while the head has no other configuration, until a join has brought the key."""
        if (now := self.clock()) - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        path, missing = head_key.PUBLIC, head_key.missing(self.place.head_address)
        with suppress(OSError, TimeoutError):
            if not self.base.loop.beside(partial(self.base.host.files.exists, path), FETCH_SECONDS, KEY):
                self._mark_unproven(missing)
            elif self.unproven is not None and self.unproven.reason == missing.reason:
                self.unproven = None

    def _mark_unproven(self, unproven: HeadRefusedError) -> None:
        self._log_refusal(self.unproven, unproven)
        self.unproven, self.refusal = unproven, None

    def _log_refusal(self, previous: HeadRefusedError | None, refusal: HeadRefusedError) -> None:
        if previous is None or previous.reason != refusal.reason:
            self.events.error("cluster.config.refused", reason=refusal.reason, hint=refusal.hint)

    def _fetch_document(self) -> None:
        """Fetch the head's document, prove it, and keep it, or note why it is refused. Raises as `_keep_document`."""
        try:
            fetched = self.head.fetch(shared_config.PATH)
            answer = self.base.loop.beside(fetched, FETCH_SECONDS, self.place.head_address)
        except (HttpError, UnsignedError, TimeoutError):
            self._refused = ""  # so that the next check fetches again
            return
        report = self.head.status.report
        self._refused = report.config_digest if report else ""
        try:
            # A document that was accepted before needs no proof; it may be refused now.
            if not self._is_kept(answer.body):
                self._verify_signature(answer)
                self.unproven = None
        except HeadRefusedError as unproven:
            self._mark_unproven(unproven)
            return
        try:
            self._keep_document(answer.body)
        except HeadRefusedError as refusal:
            self._log_refusal(self.refusal, refusal)
            self.refusal = refusal

    def _verify_signature(self, answer: ReceivedResponse) -> None:
        mac, signatures = (answer.headers.get(name.lower(), "") for name in (SIGNATURE_HEADER, head_key.HEADER))
        path, head = head_key.PUBLIC, self.place.head_address
        verify = partial(head_key.verify, self.base.host.files, path, head, mac, signatures)
        self._run_beside(verify, KEY, "what holds that file? look at: sudo dmesg")

    def _run_beside(self, work: Callable[[], T], what: str, hint: str) -> T:
        """Run `work` beside the loop. Raises HeadRefusedError where it hangs, or a disk fails."""
        try:
            return self.base.loop.beside(work, FETCH_SECONDS, what)
        except OSError as error:
            raise HeadRefusedError(str(error), hint) from None

    def _is_kept(self, body: bytes) -> bool:
        """Whether the body equals the kept document. Bytes are compared, since nothing unproven is parsed."""
        with suppress(OSError):
            read = partial(self.base.host.files.itself, FILE.path, LIMIT_BYTES)
            return self.base.loop.beside(read, FETCH_SECONDS, "reading the kept configuration").content == body
        return False

    def _keep_document(self, body: bytes) -> None:
        """Keep a proven document for the next process, unless it is the one in use.

        Raises OutdatedPlanError once it is kept, HeadRefusedError where this node can't run it.
        """
        try:
            document = FILE.decode(body)
        except ValueError as error:
            hint = "install the same version of sparkd on all nodes"
            raise HeadRefusedError(f"the configuration of the head can't be read: {error}", hint) from None
        if document.digest == self.digest:  # the head only reported another one
            self.refusal = None
            return
        backoff_key = self._judge_document(document)
        try:
            read = partial(launch_history.read_history, self.base.host.files)
            history = self.base.loop.beside(read, FETCH_SECONDS, "reading the launch history", shielded=True)
            reset_history = history.reset(backoff_key)  # a person has just chosen it, whatever failed before
            if reset_history != history:
                file = launch_history.FILE
                self.base.actions.write_state(file.name, file.encode(reset_history), file.mode)
            self.base.actions.write_state(FILE.name, body.decode(), FILE.mode)
        except OSError as error:  # TimeoutError among them
            reason = f"the configuration of the head can't be kept: {error.strerror or error}"
            raise HeadRefusedError(reason, find_remedy(error)) from None
        self.events.info("cluster.config.changed", head=self.place.head_address, digest=document.digest[:12])
        raise OutdatedPlanError("the configuration of the head has changed", "sparkd restarts with it")

    def _judge_document(self, document: Kept) -> str:
        """The backoff key of the plan that the document makes on this node. Raises HeadRefusedError."""
        judge = partial(followed_context, document, self.base.settings, self.base.host, self.place)
        hint = "what holds the files that it names? look at: sudo dmesg"
        try:
            return self._run_beside(judge, "judging the configuration of the head", hint).plan.backoff_key
        except HeadRefusedError:
            raise
        except AwaitedError as error:  # something on this node is missing that may come by itself
            raise HeadRefusedError(error.reason, error.hint) from None


def share_config(agent: Agent) -> None:
    """On a head, serve its current configuration to its workers. On a worker, check the head as `check_head`, and keep
    the files that it has sent. Raises BlockedError, too, where they can't be kept or read.
    """
    check_head(agent)
    context, plan, files = agent.context, agent.plan, agent.host.files
    if context.followed and not agent.store.replace_head_files(context.followed.config.files.values()):
        reason, hint = agent.store.last_failure
        raise BlockedError(f"the files of the head can't be kept: {reason}", hint)
    if context.is_head and context.peers:
        make = partial(
            shared_config.make_shared, context.settings, context.recipe, plan.image_id, plan.user_script, files
        )
        hint = "what holds the files that it names? look at: sudo dmesg"  # such as a share: the script, and mounts
        shared = beside_or_blocked(agent.loop, make, FETCH_SECONDS, "reading what the workers get", hint)
        body = shared_config.dump(shared)
        agent.cluster.publish(shared_config.PATH, body)
        agent.reporter.update(config_digest=shared_config.digest_of(body))


def check_head(agent: Context) -> None:
    """Check the head that a worker follows. Raises OutdatedPlanError where it has another configuration, BlockedError
    where that is refused.
    """
    try:
        if agent.follower is not None:
            agent.follower.check()
            look_for_key(agent)
    except BlockedError:
        agent.reporter.update(plan_digest="")  # so that no node compares its plan with this outdated one
        raise


def look_for_key(agent: Context) -> None:
    """On a worker that follows its head, look for the head's key, also while the rank runs: a join needs no restart."""
    if agent.follower is not None:
        agent.follower.look_for_key()
        show_unproven(agent)


def show_unproven(agent: Context) -> None:
    """Report a finding while the head's configuration is not proven to be its own."""
    unproven = agent.follower.unproven if agent.follower is not None else None
    finding = FindingReport(head_key.FINDING, "warn", unproven.reason, unproven.hint) if unproven else None
    agent.reporter.replace_finding(head_key.FINDING, finding)


def report_followed(agent: Agent, origins: Mapping[str, str]) -> None:
    """On a worker that follows its head, report the document, and log own settings that have no effect.

    `origins`: the files that its own settings come from.
    """
    if (followed := agent.context.followed) is None:
        return
    agent.reporter.update(config_digest=followed.digest)
    agent.events.info(
        "cluster.config.followed",
        head=agent.plan.node.head_address,
        digest=followed.digest[:12],
        recipe=followed.config.recipe.name,
    )
    if keys := overridden_keys(origins):
        hint = f"take them out of {origins[keys[0]]}"
        agent.events.warning("cluster.config.overridden", keys=list(keys), reason="the head decides them", hint=hint)
    if followed.config.recipe.container.no_new_privileges is False and agent.context.recipe.container.keeps_rights:
        reason = "cluster.allow.privileged of this node is false: no program of the rank gains rights by setuid here"
        hint = "if it starts by sudo: cluster.allow.privileged = true in /etc/sparkd/sparkd.toml here; else nothing"
        keys_without_effect = ["container.no_new_privileges"]
        agent.events.warning("cluster.config.overridden", keys=keys_without_effect, reason=reason, hint=hint)
