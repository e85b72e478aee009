"""A worker that follows its head starts with the last document that it has kept.

Where its head reports another one, it fetches, judges and keeps that, and ends: the next process runs it. A rank that
serves ends only with its head's.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from msgspec import Struct

from sparkd.agent.cluster.client import UnsignedError
from sparkd.agent.cluster.peer_reader import PeerReader
from sparkd.agent.daemon.context import Base
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
from sparkd.base.state.shared_config import FILE, Kept

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
    _fetched_digest: str = ""
    """The head's digest at the last fetch; empty: fetch again."""
    _fetched_at: float = 0.0
    _looked_at: float = -math.inf

    def check(self) -> None:
        """Raises OutdatedPlanError where another document of the head is kept now, BlockedError where it is refused."""
        report = self.head.status.living
        if report is None or not report.config_digest:
            return
        if report.config_digest == self.digest:
            # The worker already runs the head's configuration. Where the head's key is missing, that stays reported.
            self.refusal = None
            if not isinstance(self.unproven, head_key.MissingKeyError):
                self.unproven = None
            return
        now = self.clock()
        if report.config_digest != self._fetched_digest or now - self._fetched_at >= AGAIN_SECONDS:
            self._fetched_at = now
            self._fetch_document()
        refusal = self.refusal or (None if self.digest else self.unproven)  # no document in use: unproven blocks, too
        if refusal is not None:
            raise BlockedError(refusal.reason, refusal.hint)

    def check_key(self) -> None:
        """Report a missing key also while the head has no other configuration, until a join has brought the key."""
        if (now := self.clock()) - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        with suppress(OSError, TimeoutError):
            if not self.base.loop.beside(partial(self.base.host.files.exists, head_key.PUBLIC), FETCH_SECONDS, KEY):
                self._mark_unproven(head_key.missing(self.place.head_address))
            elif isinstance(self.unproven, head_key.MissingKeyError):
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
            self._fetched_digest = ""
            return
        report = self.head.status.report
        self._fetched_digest = report.config_digest if report else ""
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
        if document.digest == self.digest:  # the head reported another digest, and still serves this document
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
        except AwaitedError as error:  # refused, or something on this node is missing that may come by itself
            raise HeadRefusedError(error.reason, error.hint) from None
