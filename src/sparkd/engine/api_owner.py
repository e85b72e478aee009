"""Proof that the rank answers on the API's port, for each connection before anything is sent on it.

While an engine loads, and once it has ended, any user of the node may listen there: the key would be theirs, and their
answers would pass for the engine's.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Iterator

from sparkd.actions.processes import Rank
from sparkd.host import Host
from sparkd.host.connections import Peer, find_peer, has_open
from sparkd.host.processes import read_process
from sparkd.host.sockets import Listener
from sparkd.lib.http_client import WrongServerError
from sparkd.lib.log import Events
from sparkd.preflight.engine_processes import port_holders
from sparkd.preflight.fixes import stop_by_hand

ACCEPT_POLL_SECONDS = 0.02
"""Until the server accepts; the deadline is the request's."""
NAMED_SECONDS = 60.0
"""The holder of a port is searched for at most this often: that reads the open files of every process."""
DEEPEST = 16
"""Generations between a server's process and its container's first one."""


class ApiOwner:
    """For one rank, in the network's loop: `admit` is the proof."""

    def __init__(self, host: Host, rank: Rank, events: Events) -> None:
        self._host, self._rank, self._events = host, rank, events
        self._server_pid = rank.pid
        self._named_at = float("-inf")
        self._holder = ""

    async def admit(self, own: socket.socket) -> None:
        """Wait until the connection is accepted. Raises WrongServerError where the rank has not accepted it."""
        try:
            while (peer := find_peer(own)) is None:
                await asyncio.sleep(ACCEPT_POLL_SECONDS)
            # In a thread: a user may have made many processes.
            holder = await asyncio.to_thread(self._find_other, own, peer)
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no thread can be started
            raise WrongServerError(f"it is not known which process answers: {error}") from None
        if holder:
            raise WrongServerError(holder)

    def _find_other(self, own: socket.socket, peer: Peer) -> str:
        """The holder of the port, in words; empty where it is the rank."""
        server = next((pid for pid in self._pids() if has_open(self._host.files, pid, peer.inode)), None)
        if server is None or select.select([self._rank.pidfd], [], [], 0)[0]:  # readable: the pids may be others' now
            return self._name_holder(own, peer)
        self._server_pid = server
        return ""

    def _pids(self) -> Iterator[int]:
        """The rank's processes: the one that served last, then all."""
        if self._server_pid == self._rank.pid or self._descends(self._server_pid):
            yield self._server_pid
        yield self._rank.pid
        yield from (one.pid for one in self._host.processes().descendants(self._rank.pid))

    def _descends(self, pid: int) -> bool:
        for _ in range(DEEPEST):
            process = read_process(self._host.files, pid)
            if process is None or process.parent == self._rank.pid:
                return process is not None
            pid = process.parent
        return False

    def _name_holder(self, own: socket.socket, peer: Peer) -> str:
        if time.monotonic() - self._named_at >= NAMED_SECONDS:
            address, port, *_ = own.getpeername()
            table = self._host.processes()
            (use,) = port_holders(self._host, table, (Listener(str(address), int(port), peer.inode),))
            pid, name, user = use.pid or 0, use.comm, self._host.user(peer.uid)
            before, self._named_at = self._holder, time.monotonic()
            self._holder = f"port {port} is held by pid {pid or '?'} ({name or '?'}) of {user}, not by this rank"
            if self._holder != before:
                hint = (
                    f"stop it if it may go: {stop_by_hand(pid, use.service_stop)}"
                    if pid
                    else f"ss -ltnp sport = :{port}"
                )
                self._events.warning(
                    "engine.port.foreign", address=address, port=port, pid=pid, process=name, user=user, hint=hint
                )
        return self._holder
