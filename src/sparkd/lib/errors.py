"""Errors, each with its exit code and the code of its cause."""

from __future__ import annotations

from enum import IntEnum, StrEnum


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


class Cause(StrEnum):
    """What ended a run, for programs. sparkd(8) explains them."""

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


class SparkdError(Exception):
    """Readable by a person: what was found and needed (`reason`), and what to do (`hint`)."""

    code: ExitCode = ExitCode.BUG
    cause: Cause = Cause.BUG

    def __init__(self, reason: str, hint: str = "", *, cause: Cause | None = None) -> None:
        """`cause`: where it is known better than by the class."""
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.cause = cause or self.cause

    def __str__(self) -> str:
        return f"{self.reason} ({self.hint})" if self.hint else self.reason


class UsageError(SparkdError):
    code = ExitCode.USAGE
    cause = Cause.USAGE


class ConfigError(SparkdError):
    """Configuration, recipe or role is wrong: a restart cannot help."""

    code = ExitCode.CONFIG
    cause = Cause.CONFIGURATION


class AwaitedError(ConfigError):
    """What is missing may come by itself, such as a file on a late mount: only the agent waits for it."""


class AddressAwaitedError(AwaitedError):
    """No address of cluster.nodes is this node's. At boot it may come later."""


class HeadAwaitedError(AwaitedError):
    """A worker that follows its head has no configuration of it."""


class HeadRefusedError(HeadAwaitedError):
    """What the head wants is more than this worker allows, or can't be."""


class BlockedError(SparkdError):
    """Preflight blocks the launch, plans differ, or another process owns the node."""

    code = ExitCode.BLOCKED
    cause = Cause.BLOCKED

    def __init__(
        self, reason: str, hint: str = "", checks: tuple[str, ...] = (), *, cause: Cause | None = None
    ) -> None:
        """`checks`: ids of those that block; empty where none does."""
        super().__init__(reason, hint, cause=cause)
        self.checks = checks


class OutdatedPlanError(BlockedError):
    """What the plan was made of has changed: the next process makes a new one."""

    cause = Cause.PLAN_OUTDATED


class NeedsPersonError(SparkdError):
    """Only a person can help, such as by a reboot: a restart cannot."""

    code = ExitCode.NEEDS_PERSON
    cause = Cause.NEEDS_PERSON


class LaunchError(SparkdError):
    code = ExitCode.LAUNCH_FAILED
    cause = Cause.LAUNCH_FAILED


class NotReadyError(SparkdError):
    code = ExitCode.NOT_READY
    cause = Cause.NOT_READY


class EngineEndedError(SparkdError):
    code = ExitCode.ENGINE_ENDED
    cause = Cause.ENGINE_ENDED


class PeerLostError(SparkdError):
    """Another rank of the engine is gone, and this one is useless without it."""

    code = ExitCode.PEER_LOST
    cause = Cause.PEER_LOST


class StalledError(SparkdError):
    code = ExitCode.STALLED
    cause = Cause.ENGINE_STALLED


class MemoryGuardError(SparkdError):
    code = ExitCode.MEMORY_GUARD
    cause = Cause.MEMORY_GUARD
