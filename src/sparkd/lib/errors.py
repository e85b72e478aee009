"""Errors, each with its exit code."""

from __future__ import annotations

from enum import IntEnum


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


class SparkdError(Exception):
    """Readable by a person: what was found and needed (`reason`), and what to do (`hint`)."""

    code: ExitCode = ExitCode.BUG

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.reason} ({self.hint})" if self.hint else self.reason


class UsageError(SparkdError):
    code = ExitCode.USAGE


class ConfigError(SparkdError):
    """Configuration, recipe or role is wrong: a restart cannot help."""

    code = ExitCode.CONFIG


class AddressAwaitedError(ConfigError):
    """No address of cluster.nodes is this node's. At boot it may come later: only the agent waits for it."""


class BlockedError(SparkdError):
    """Preflight blocks the launch, plans differ, or another process owns the node."""

    code = ExitCode.BLOCKED

    def __init__(self, reason: str, hint: str = "", checks: tuple[str, ...] = ()) -> None:
        """`checks`: ids of those that block; empty where none does."""
        super().__init__(reason, hint)
        self.checks = checks


class OutdatedPlanError(BlockedError):
    """What the plan was made of has changed: the next process makes a new one."""


class NeedsPersonError(SparkdError):
    """Only a person can help, such as by a reboot: a restart cannot."""

    code = ExitCode.NEEDS_PERSON


class LaunchError(SparkdError):
    code = ExitCode.LAUNCH_FAILED


class NotReadyError(SparkdError):
    code = ExitCode.NOT_READY


class EngineEndedError(SparkdError):
    code = ExitCode.ENGINE_ENDED


class PeerLostError(SparkdError):
    """Another rank of the engine is gone, and this one is useless without it."""

    code = ExitCode.PEER_LOST


class StalledError(SparkdError):
    code = ExitCode.STALLED


class MemoryGuardError(SparkdError):
    code = ExitCode.MEMORY_GUARD
