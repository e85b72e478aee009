"""The processes that memory guards of a test have started, and whether one watches."""

import psutil

from sparkd.agent.engine.memory_guard.guard import MemoryGuard


def find_killers() -> set[int]:
    """Pids of the killers that this process has started."""
    return {child.pid for child in psutil.Process().children() if "memory_guard.killer" in _command_line(child)}


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def is_watching(guard: MemoryGuard) -> bool:
    return guard.state in ("watching", "unlocked")
