"""How much of the shared memory the GPU's driver holds for each process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkd.host import Host
    from sparkd.host.processes import Process


def by_pid(host: Host, processes: Iterable[Process]) -> tuple[tuple[int, int], ...]:
    """(pid, bytes) of those that use the GPU; nothing where the GPU has memory of its own.

    The driver does not count this memory as the process's, and may not say how much it is. Then everything that no
    counter of the kernel explains is put down to the first of them: an estimate, good enough to tell whether ending
    strays could make room. Afterwards the memory is looked at again.
    """
    if not host.gpu_present():
        return ()
    gpu = host.gpu()
    if gpu.total_bytes is not None:
        return ()
    known = {one.pid: one.used_bytes for one in gpu.processes or ()}
    judged = {process.pid: process for process in processes}
    users = {file.pid for file in host.gpu_users(judged.values()).found} | (known.keys() & judged.keys())
    told = {pid: size for pid in users if (size := known.get(pid)) is not None}
    untold = sorted(users - told.keys())
    if untold:
        everyone = sum(size for size in known.values() if size is not None)
        told[untold[0]] = max(0, host.meminfo().unaccounted_bytes - everyone)
    return tuple(sorted(told.items()))
