"""A stray of vLLM: a worker whose API server was killed, as a program for a node."""

from __future__ import annotations

from .node import Node
from .processes import command_name

STRAY_NAME = "VLLM::Worker_TP"
"""What the kernel keeps of a worker's name: 15 characters."""
STRAY = f"""
import ctypes, os, signal, time
if os.fork():
    os._exit(0)  # its leader is gone: it is init's now
ctypes.CDLL(None).prctl(15, b"{STRAY_NAME}", 0, 0, 0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = open("/dev/shm/psm_0000beef", "wb")
held.write(b"x" * 4096)
held.flush()
time.sleep(3600)
"""
"""As vLLM leaves it when its API server is killed: orphaned, deaf to SIGTERM, holding shared memory."""


def stray_pids(node: Node) -> list[int]:
    """The strays on a node, by their pids on this machine."""
    return [pid for pid in node.group.pids() if command_name(pid) == STRAY_NAME]
