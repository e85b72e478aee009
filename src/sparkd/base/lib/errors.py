"""Errors, each with its exit code, the code of its cause, and the action that is required."""

import errno
from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import ClassVar, Final


class ExitCode(IntEnum):
    """Exit codes of every sparkd command. Units never restart on 2, 17 and 78."""

    GOOD = 0
    BUG = 1
    USAGE = 2
    BLOCKED = 10
    """Another process owns the node, or what the plan was made of has changed; of `sparkd preflight`: it blocks."""
    LAUNCH_FAILED = 11
    NOT_READY = 12
    ENGINE_ENDED = 13
    PEER_LOST = 14
    STALLED = 15
    MEMORY_GUARD = 16
    NEEDS_PERSON = 17
    ON_THE_WAY = 20
    """`sparkd status` only: not serving yet."""
    DOWN = 21
    """`sparkd status` only: not serving, and not starting."""
    CONFIG = 78


NOT_RESTARTED = (ExitCode.USAGE, ExitCode.NEEDS_PERSON, ExitCode.CONFIG)
"""Codes after which the unit stays down: its RestartPreventExitStatus."""


class Cause(StrEnum):
    """What ended a run, for programs. sparkd-events(7) explains them."""

    BUG = "bug"
    USAGE = "usage"
    CONFIGURATION = "configuration"
    BLOCKED = "blocked"
    PLAN_OUTDATED = "plan-outdated"
    NEEDS_PERSON = "needs-person"
    STOP_REQUESTED = "stop-requested"
    SWITCH = "switch"
    SWITCH_FAILED = "switch-failed"
    AGENT_KILLED = "agent-killed"
    SYSTEM_ERROR = "system-error"
    LAUNCH_FAILED = "launch-failed"
    IMAGE_MISSING = "image-missing"
    DOCKER_HUNG = "docker-hung"
    DOCKER_RESTARTED = "docker-restarted"
    NOT_READY = "not-ready"
    LOAD_STALLED = "load-stalled"
    ENGINE_ERROR = "engine-error"
    ENGINE_ENDED = "engine-ended"
    ENGINE_STALLED = "engine-stalled"
    ENGINE_STOPPED = "engine-stopped"
    KILLED_FROM_OUTSIDE = "killed-from-outside"
    KERNEL_OOM = "kernel-oom"
    MEMORY_GUARD = "memory-guard"
    MEMORY_TAKEN = "memory-taken"
    PORT_TAKEN = "port-taken"
    PEER_FAILED = "peer-failed"
    PEER_STOPPED = "peer-stopped"
    PEER_LOST = "peer-lost"
    PEER_SILENT = "peer-silent"
    OWN_ADDRESS_GONE = "own-address-gone"


NOT_BY_PLAN = (Cause.DOCKER_HUNG, Cause.DOCKER_RESTARTED, Cause.MEMORY_TAKEN, Cause.PORT_TAKEN, Cause.OWN_ADDRESS_GONE)
"""Causes of a rank's end that say nothing of its plan. One that is killed from outside may be so for its memory."""


class Action(StrEnum):
    """What an end, a finding or a message of the kernel's log requires."""

    NONE = "none"
    """Nothing by a person: sparkd itself does what is to be done."""
    RESTART = "restart"
    """Restart the engine, after a message of the kernel's log: sparkd does so where it ends. After an end, a person
    restarts the unit that the hint names."""
    REBOOT = "reboot"
    POWER_CYCLE = "power-cycle"
    INSPECT = "inspect"
    """A person has to look or to change something: no restart helps."""


ACTIONS: Mapping[Cause, Action] = dict.fromkeys(Cause, Action.NONE) | {
    Cause.USAGE: Action.INSPECT,
    Cause.CONFIGURATION: Action.INSPECT,
    Cause.BLOCKED: Action.INSPECT,
    Cause.NEEDS_PERSON: Action.INSPECT,
    Cause.SYSTEM_ERROR: Action.INSPECT,
    Cause.LAUNCH_FAILED: Action.INSPECT,
    Cause.IMAGE_MISSING: Action.INSPECT,
    Cause.DOCKER_HUNG: Action.RESTART,
    Cause.OWN_ADDRESS_GONE: Action.INSPECT,
}
"""NONE: the next start, which is sparkd's, may serve. After five that failed in a row the cause is `needs-person`."""


def find_action(cause: str) -> str:
    """The action of a cause; empty for a cause that this version does not know."""
    return next((action.value for known, action in ACTIONS.items() if known == cause), "")


class SparkdError(Exception):
    """Readable by a person: what was found and needed (`reason`), and what to do (`hint`). Values do not change."""

    code: ClassVar[ExitCode] = ExitCode.BUG
    usual_cause: ClassVar[Cause] = Cause.BUG

    def __init__(
        self, reason: str, hint: str = "", *, cause: Cause | None = None, action: Action | None = None
    ) -> None:
        """`cause` replaces the usual cause of the class, and `action` the usual one of the cause."""
        super().__init__(reason)
        self.reason: Final = reason
        self.hint: Final = hint
        self.cause: Final = cause or self.usual_cause
        self.action: Final = action or ACTIONS[self.cause]

    def __str__(self) -> str:
        return f"{self.reason} ({self.hint})" if self.hint else self.reason

    @property
    def lines(self) -> str:
        """The text for a terminal, reason and hint on lines of their own. Names and other foreign text are escaped."""
        from sparkd.base.lib.text import printable

        marked = (("sparkd", self.reason), ("hint", self.hint))
        return "\n".join(f"{mark}: {printable(line)}" for mark, text in marked for line in text.splitlines())


AS_ROOT = "run it as root"
"""A hint of a UsageError that `cli` replaces by the command with sudo."""


class UsageError(SparkdError):
    code = ExitCode.USAGE
    usual_cause = Cause.USAGE


class ConfigError(SparkdError):
    """Configuration, recipe or role is wrong: a restart cannot help. A subclass says what else may."""

    code = ExitCode.CONFIG
    usual_cause = Cause.CONFIGURATION


class AwaitedError(ConfigError):
    """What is wrong may end while the agent waits, such as a file that is missing on a late mount. A command exits."""


class UnreadableError(AwaitedError):
    """A file is there and can't be read now, as while the server of its share is away."""


class DamagedError(UnreadableError):
    """A file is there, on a file system that a power cut has damaged, until a person repairs that."""


class ChoiceError(ConfigError):
    """The chosen plan can't be made any more. What is configured may still be launched."""


NOT_NOW = frozenset(
    {errno.EIO, errno.ENODEV, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH}
    | {errno.ENOMEM, errno.ENFILE}
)
"""Errors of a read on a share whose server is away, on a mount by systemd's automount that failed, and on a machine
that has just run out of memory or of open files."""


def unreadable(error: OSError) -> type[ConfigError]:
    """The class of the error where a file can't be read: the agent waits if it may be readable later."""
    if error.errno in (errno.EUCLEAN, errno.EBADMSG):
        return DamagedError
    if error.errno in NOT_NOW:
        return UnreadableError
    return AwaitedError if isinstance(error, FileNotFoundError) else ConfigError


class AddressAwaitedError(AwaitedError):
    """No address of cluster.nodes is this node's. At boot it may come later."""


class HeadAwaitedError(AwaitedError):
    """A worker that follows its head has no configuration of it that it may use. It waits for one."""


class HeadRefusedError(HeadAwaitedError):
    """What the head wants is more than this worker allows, or can't be: it is blocked until either of them changes."""


class BlockedError(SparkdError):
    """Preflight blocks the launch, plans differ, or another process owns the node."""

    code = ExitCode.BLOCKED
    usual_cause = Cause.BLOCKED

    def __init__(self, reason: str, hint: str = "", checks: tuple[str, ...] = (), action: Action | None = None) -> None:
        """`checks`: ids of those that block; empty where none does."""
        super().__init__(reason, hint, action=action)
        self.checks: Final = checks


class OutdatedPlanError(BlockedError):
    """What the plan was made of has changed: the next process makes a new one."""

    usual_cause = Cause.PLAN_OUTDATED


class NeedsPersonError(SparkdError):
    """Only a person can help, such as by a reboot: a restart cannot."""

    code = ExitCode.NEEDS_PERSON
    usual_cause = Cause.NEEDS_PERSON

    def __init__(self, reason: str, hint: str = "", *, action: Action | None = None, proven: bool = False) -> None:
        """`proven`: whether every check of this node that blocks is sure of it."""
        super().__init__(reason, hint, action=action)
        self.proven: Final = proven


class LaunchError(SparkdError):
    code = ExitCode.LAUNCH_FAILED
    usual_cause = Cause.LAUNCH_FAILED


class NotReadyError(SparkdError):
    code = ExitCode.NOT_READY
    usual_cause = Cause.NOT_READY


class EngineEndedError(SparkdError):
    code = ExitCode.ENGINE_ENDED
    usual_cause = Cause.ENGINE_ENDED


class RankEndedError(EngineEndedError):
    """The rank's container has ended by itself, for a reason that is not known yet."""


class EngineDeadError(EngineEndedError):
    """The rank's engine is dead, while its container may still run. The reason is not known yet."""


class PeerLostError(SparkdError):
    """Another rank of the engine is gone, and this one is useless without it."""

    code = ExitCode.PEER_LOST
    usual_cause = Cause.PEER_LOST


class StalledError(SparkdError):
    code = ExitCode.STALLED
    usual_cause = Cause.ENGINE_STALLED


class MemoryGuardError(SparkdError):
    code = ExitCode.MEMORY_GUARD
    usual_cause = Cause.MEMORY_GUARD
