"""One node: a machine with a power switch, a disk, a console and an address."""

import contextlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from . import client, registry
from .command import BedError
from .fabric import Fabric
from .network import Addresses, fabric_port, management_port
from .pool import RUNS
from .processes import Identity, alive, children, command_line, command_name, identities, nested_pids, wait_for
from .shell import DEPTH, OffError, Shell
from .space import tail


@dataclass(frozen=True)
class Node(Shell):
    """All state is in the kernel or under /run, so that any process may hold a Node of the same bed."""

    # What it is

    @property
    def addresses(self) -> Addresses:
        return Addresses(int(self.name.removeprefix("spark")))

    @property
    def address(self) -> str:
        """Where the test client reaches it."""
        return self.addresses.management

    @property
    def fabric_address(self) -> str:
        return self.addresses.fabric

    @property
    def console(self) -> Path:
        return registry.HOME / self.bed / f"{self.name}.console"

    @property
    def image(self) -> Path:
        """Its disk, as the space sees it."""
        return RUNS / self.bed / f"{self.name}.img"

    # Power

    def power_on(self) -> None:
        """Press the switch; `wait_up` waits for the rest."""
        if self.supervisor:
            return
        self.group.make()
        module = (sys.executable, "-m", "tests.bed.supervisor", self.bed, self.name)
        supervisor = self.space.spawn(self.console, *module)
        registry.write_json(self._switch, asdict(supervisor))
        wait_for(lambda: self.init or not supervisor.alive, 60, f"{self.name} to start")
        if not supervisor.alive:
            raise BedError(f"{self.name} does not start: {tail(self.console)}")

    def boot(self, timeout: float = 120) -> str:
        self.power_on()
        return self.wait_up(timeout)

    def wait_up(self, timeout: float = 120) -> str:
        """Until systemd says running or degraded (which is returned) and docker answers."""
        state = ""

        def up() -> bool:
            nonlocal state
            if not self.supervisor:
                raise BedError(f"{self.name} is off: {tail(self.console)}")
            with contextlib.suppress(OffError):  # between two boots
                state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
            return state in ("running", "degraded")

        try:
            wait_for(up, timeout, f"{self.name} to boot")
        except BedError as error:
            raise BedError(f"{error} (systemd says {state!r})") from error
        if self.docker:
            command = ("docker", "version", "--format", "{{.Server.Version}}")
            wait_for(lambda: self.run(*command, check=False).returncode == 0, timeout, f"docker of {self.name}")
        return state

    def wait_booted(self, timeout: float = 240) -> None:
        """Until multi-user.target is reached, whatever still starts after it.

        A node that still goes down is waited for too: a unit may take its 90 s to stop.
        """

        def booted() -> bool:
            with contextlib.suppress(BedError):  # between two boots; or sent to a manager that was just leaving
                state = self.run("systemctl", "is-system-running", check=False, timeout=20).stdout.strip()
                reached = self.run("systemctl", "is-active", "multi-user.target", check=False, timeout=20).stdout
                return state in ("starting", "running", "degraded") and reached.strip() == "active"
            return False

        wait_for(booted, timeout, f"{self.name} to boot")

    def reboot(self, timeout: float = 120) -> str:
        """Orderly, as by a person at its shell."""
        before = self._pid_one()
        self.run("systemctl", "reboot", check=False)
        wait_for(lambda: not before.alive, timeout, f"{self.name} to go down")
        return self.wait_up(timeout)

    def power_off(self, timeout: float = 120) -> None:
        """Orderly; a node that does not go down in time is an error."""
        self.run("systemctl", "poweroff", check=False)
        wait_for(lambda: not self.supervisor, timeout, f"{self.name} to power off")
        self._discharge()

    def powercut(self, lose_unsynced: bool = False, stay_off: bool = False, timeout: float = 120) -> None:
        """The plug is pulled. `lose_unsynced`: what the node had not yet brought to its disk is lost, as in life."""
        kept = self.image.with_suffix(".kept")
        lose_unsynced = lose_unsynced and self.supervisor is not None
        if lose_unsynced:
            self.group.freeze(True)
            self.space.module("pool", "clone", self.image, kept)
        self._cut()
        if lose_unsynced:
            self.space.run("mv", kept, self.image)
        if not stay_off:
            self.boot(timeout)

    def _cut(self) -> None:
        # First, or the kernel of this machine would close the dying node's connections: nobody hears a power cut.
        for port in (management_port(self.addresses.index), fabric_port(self.addresses.index)):
            self.space.run("ip", "link", "delete", port, check=False)
        if supervisor := self.supervisor:
            init = self.init
            machine = identities([*([init] if init else []), *children(supervisor.pid)])
            for process in (supervisor, *machine):  # the power supply first, or it would boot again
                process.end()
        self._discharge()

    def discard(self) -> None:
        """Cut, and its disk thrown away."""
        self._cut()
        self.space.run("rm", "-f", self.image)

    def _discharge(self) -> None:
        """Off for certain: no process, no mount, no loop device holds the disk."""
        wait_for(lambda: not self._loops(), 20, f"the disk of {self.name} to be free")
        self.group.clear()

    def _loops(self) -> str:
        listed = self.space.run("losetup", "--noheadings", "--output", "NAME", "--associated", self.image, check=False)
        return listed.stdout.strip()

    def freeze(self) -> None:
        """Nothing in it runs any more, as in a hang, not even what the test starts in it; its network still answers
        pings and refuses connections, being this kernel's."""
        self.group.freeze(True)

    def thaw(self) -> None:
        self.group.freeze(False)

    def memory(self, limit_bytes: int | None) -> None:
        """The memory of the whole node; beyond it processes of the node are killed, never those of this machine."""
        self.group.limit_memory(limit_bytes)

    # Network

    @property
    def fabric(self) -> Fabric:
        """Its cable, and the faults of the cable."""
        return Fabric(self.bed, self.addresses.index, self.space)

    def http(
        self,
        port: int,
        path: str = "/",
        *,
        method: str = "GET",
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10,
    ) -> client.Answer:
        """Requested by the test client over the management network; OSError when nobody answers."""
        connection = client.connect(self.space.keeper.pid, self.address, port, timeout)
        return client.request(connection, method, path, body, headers or {}, timeout)

    def listens(self, port: int) -> bool:
        """Whether a connection to it is taken."""
        try:
            client.connect(self.space.keeper.pid, self.address, port, timeout=2).close()
        except OSError:
            return False
        return True

    def post(self, port: int, path: str, value: object, timeout: float = 60) -> client.Answer:
        headers = {"Content-Type": "application/json"}
        return self.http(port, path, method="POST", body=json.dumps(value), headers=headers, timeout=timeout)

    # Its processes

    def _processes(self) -> dict[int, int]:
        """Pid in the node -> pid here; containers of the node included."""
        nested = ((pid, nested_pids(pid)) for pid in self.group.pids() if alive(pid))
        return {pids[DEPTH - 1]: pid for pid, pids in nested if len(pids) >= DEPTH}

    def pids(self, pattern: str) -> list[int]:
        """Those, as the node numbers them, whose name or command line the pattern is found in."""
        return sorted(self._matching(pattern))

    def found(self, pattern: str) -> list[Identity]:
        """The same ones, to be checked later for whether they still run, even of a node that is off by then."""
        return identities(self._matching(pattern).values())

    def _matching(self, pattern: str) -> dict[int, int]:
        wanted = re.compile(pattern)
        every = self._processes().items()
        return {
            inner: pid for inner, pid in every if wanted.search(command_name(pid)) or wanted.search(command_line(pid))
        }

    def kill(self, pid: int, number: int) -> None:
        """Signal the process that the node knows by this pid; ProcessLookupError when there is none."""
        if pid <= 1:
            raise ValueError(f"will not signal pid {pid}")
        if (outer := self._processes().get(pid)) is None:
            raise ProcessLookupError(f"{self.name} has no process {pid}")
        Identity.of(outer).send(number)
