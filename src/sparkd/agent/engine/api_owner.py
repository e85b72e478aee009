"""Proof that the rank answers on the API's port, for each connection before anything is sent on it.

While an engine loads, and once it has ended, any user of the node may listen there: the key would be theirs, and their
answers would pass for the engine's.
"""

import asyncio
import select
import socket
import time
from collections.abc import Iterator
from errno import ENOTCONN
from functools import partial

from sparkd.agent.actions.rank_process import Rank
from sparkd.agent.preflight.fixes import stop_by_hand
from sparkd.agent.preflight.port_uses import describe_holder, find_port_uses, find_stop_command
from sparkd.base.host import Host
from sparkd.base.host.processes import read_process
from sparkd.base.host.sock_diag import TcpSocket
from sparkd.base.host.sockets import Listener, find_peer, has_open
from sparkd.base.lib.event_loop import run_in_thread
from sparkd.base.lib.http_client import HttpError, WrongServerError
from sparkd.base.lib.log import Events

QUERY_AFTER_SECONDS = 1.0
"""Time for the server to accept, before the kernel is queried once for the process that listens."""
SEARCH_SECONDS = 60.0
"""Pause between two searches for the holder of a port, which read the open files of every process."""


class ApiOwner:
    """Proves, for each connection, that the rank has accepted it and no other process."""

    def __init__(self, host: Host, rank: Rank, events: Events, address: str, port: int) -> None:
        self._host, self._rank, self._events = host, rank, events
        self._address, self._port = address, port
        self._server_pid = rank.pid
        self._named_at = float("-inf")
        """When `holder` was last set."""
        self._queried_at = float("-inf")
        """When the kernel was last queried for those that listen."""
        self._blocked_at = float("-inf")
        """When all processes were last read without a thread, which may take a second: the loop stands meanwhile."""
        self._squatted = False
        """Whether only other processes listened at that query."""
        self.holder = ""
        """Who had the port instead of the rank, in words. At an error it may be 2 * SEARCH_SECONDS old."""

    async def admit(self, connection: socket.socket | None) -> None:
        """Wait until the server has accepted the connection; None: it is closed already.

        Raises HttpError where the server closes it first, WrongServerError where a process that is none of the rank's
        has accepted it, or listens and does not accept.
        """
        try:
            peer = await self._await_accepted(connection)
            accepted = Listener(self._address, self._port, peer.inode)
            if not await self._is_ranks(accepted, peer.uid):
                raise WrongServerError(self.holder)
        except (OSError, ValueError) as error:
            raise WrongServerError(f"it is not known which process answers: {error}") from None

    async def _await_accepted(self, connection: socket.socket | None) -> TcpSocket:
        """Wait for the server's end of the connection. Raises as `admit`."""
        query_at = time.monotonic() + QUERY_AFTER_SECONDS
        while connection is not None and not _is_closed(connection):
            try:
                peer = find_peer(connection)
            except OSError as error:
                if error.errno != ENOTCONN:
                    raise
                break  # closed just now
            if peer is not None:
                return peer
            if time.monotonic() >= query_at:
                query_at = float("inf")
                await self._raise_if_squatted()
            await asyncio.sleep(0.02)  # the deadline is the request's
        await self._raise_if_squatted()
        raise HttpError("the server closed the connection before anything was sent")

    async def _is_ranks(self, accepted: Listener, uid: int) -> bool:
        """Whether the rank has the socket. Raises BlockingIOError where no thread is free to look."""
        look = partial(self._note_owner, (accepted,), uid)
        try:
            return await run_in_thread("api-owner", look)
        except BlockingIOError:  # an engine that serves is not given up for that
            if self._note_server((accepted,), self._known_pids()):
                return True
            if time.monotonic() - self._blocked_at < SEARCH_SECONDS:
                raise
            self._blocked_at = time.monotonic()
            return look()

    async def _raise_if_squatted(self) -> None:
        try:
            is_squatted = await run_in_thread("api-owner", self._only_others_listen)
        except BlockingIOError:  # no thread now
            is_squatted = self._only_others_listen()
        if is_squatted:
            raise WrongServerError(self.holder)

    def _only_others_listen(self) -> bool:
        """Returns whether other processes listen on the port, and not the rank. Queries once in SEARCH_SECONDS."""
        if time.monotonic() - self._queried_at >= SEARCH_SECONDS:
            self._queried_at = time.monotonic()
            addresses = ("0.0.0.0", "::", self._address)  # noqa: S104  # compared, not bound
            listeners = self._host.listeners((self._port,))
            listening = tuple(listener for listener in listeners if listener.address in addresses)
            self._squatted = bool(listening) and not self._note_owner(listening)
        return self._squatted

    def _note_owner(self, sockets: tuple[Listener, ...], uid: int | None = None) -> bool:
        """Note the rank's process that has one of the sockets, or else name the holder of the first.

        Returns whether one is the rank's. `uid`: the user who owns it, as the kernel reports.
        """
        if self._note_server(sockets, self._pids()):
            return True
        self._name_holder(sockets[0], self._host.user(uid) if uid is not None else "")
        return False

    def _note_server(self, sockets: tuple[Listener, ...], pids: Iterator[int]) -> bool:
        """Note which of the rank's processes has one of the sockets. Returns whether one has."""
        inodes = {listener.inode for listener in sockets}
        server = next((pid for pid in pids if has_open(self._host.files, pid, inodes)), None)
        # A readable pidfd: the rank has ended, and other processes may have its pids.
        if server is None or select.select([self._rank.pidfd], [], [], 0)[0]:
            return False
        self._server_pid = server
        return True

    def _known_pids(self) -> Iterator[int]:
        """The process that served last, as long as it is the rank's, and the rank's first one."""
        if self._server_pid == self._rank.pid or self._descends(self._server_pid):
            yield self._server_pid
        yield self._rank.pid

    def _pids(self) -> Iterator[int]:
        """Pids of the rank's processes: those that are known, then all."""
        yield from self._known_pids()
        yield from (process.pid for process in self._host.processes().descendants(self._rank.pid))

    def _descends(self, pid: int) -> bool:
        for _ in range(16):  # generations up to the container's first process
            process = read_process(self._host.files, pid)
            if process is None or process.parent == self._rank.pid:
                return process is not None
            pid = process.parent
        return False

    def _name_holder(self, listener: Listener, user: str) -> None:
        if time.monotonic() - self._named_at < SEARCH_SECONDS:
            return
        (use,) = find_port_uses(self._host, self._host.processes(), (listener,))
        earlier, self._named_at, self.holder = self.holder, time.monotonic(), describe_holder(use, user)
        if self.holder != earlier:
            command = find_stop_command(use) or stop_by_hand(use.pid or 0, use.service_stop, beside_agent=True)
            self._events.warning(
                "engine.port.foreign",
                address=self._address,
                port=self._port,
                pid=use.pid or 0,
                process=use.comm,
                user=user or use.user,
                hint=f"stop it if it may go: {command}" if use.pid else f"sudo ss -ltnp sport = :{self._port}",
            )


def _is_closed(connection: socket.socket) -> bool:
    """Whether the other end has closed or reset it."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
