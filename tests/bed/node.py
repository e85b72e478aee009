"""One node: a machine with a power switch, a disk, a console and an address."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from . import client, registry
from .cgroups import NodeGroup
from .command import Argument, BedError, failure, words
from .network import Addresses
from .pool import RUNS
from .processes import Identity, alive, children, command_line, command_name, descendants, nested_pids, wait_for
from .space import Space, tail
from .tree import PATH

ENVIRONMENT = ("env", "-i", f"PATH={PATH}", "HOME=/root", "USER=root", "LANG=C.UTF-8", "TERM=dumb")
DEPTH = 3  # pid namespaces: this machine's, the bed's, the node's


@dataclass(frozen=True)
class Node:
    """All state is in the kernel or under /run, so that any process may hold a Node of the same bed."""

    bed: str
    name: str
    space: Space
    docker: bool

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
    def group(self) -> NodeGroup:
        return NodeGroup(self.bed, self.name)

    @property
    def console(self) -> Path:
        return registry.HOME / self.bed / f"{self.name}.console"

    @property
    def image(self) -> Path:
        """Its disk, as the space sees it."""
        return RUNS / self.bed / f"{self.name}.img"

    # Power

    @property
    def _switch(self) -> Path:
        return registry.HOME / self.bed / f"{self.name}.json"

    @property
    def supervisor(self) -> Identity | None:
        noted = registry.read_identity(self._switch)
        return noted if noted and noted.alive else None

    @property
    def init(self) -> int | None:
        """PID 1 of the node, as this machine numbers it; None while the node is off."""
        supervisor = self.supervisor
        for nspawn in children(supervisor.pid) if supervisor else []:
            for child in children(nspawn):
                if len(pids := nested_pids(child)) == DEPTH and pids[-1] == 1:
                    return child
        return None

    def power_on(self) -> None:
        """Press the switch; `wait_up` waits for the rest."""
        if self.supervisor:
            return
        self.group.make()
        module = ("python3", "-m", "tests.bed.supervisor", self.bed, self.name)
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
            if self.init is None:
                return False
            state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
            return state in ("running", "degraded")

        try:
            wait_for(up, timeout, f"{self.name} to boot")
        except BedError as error:
            raise BedError(f"{error} (systemd says {state!r})") from error
        if self.docker:
            asked = ("docker", "version", "--format", "{{.Server.Version}}")
            wait_for(lambda: self.run(*asked, check=False).returncode == 0, timeout, f"docker of {self.name}")
        return state

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
        if supervisor := self.supervisor:
            nspawns = [Identity.of(pid) for pid in children(supervisor.pid)]
            init = self.init
            machine = [Identity.of(init)] if init else []
            for process in (supervisor, *machine, *nspawns):  # the power supply first, or it would boot again
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

    # Inside

    def _pid_one(self) -> Identity:
        if (init := self.init) is None:
            raise BedError(f"{self.name} is off")
        return Identity.of(init)

    def entered(self, *argv: Argument) -> list[str]:
        """The command that runs `argv` in the node."""
        target = ("nsenter", "-t", str(self._pid_one().pid), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--")
        return self.group.entered("visitors", *target, *ENVIRONMENT, *argv)

    def run(
        self,
        *argv: Argument,
        check: bool = True,
        timeout: float = 120,
        input: str | None = None,  # noqa: A002
    ) -> subprocess.CompletedProcess[str]:
        """Run in the node as root, to the end. What is to stay behind must close its output (`>/dev/null 2>&1 &`)."""
        done = self._to_the_end(argv, timeout, input or "")
        if check and done.returncode:
            raise BedError(f"{self.name}: " + failure(words(argv), done.returncode, done.stderr or done.stdout))
        return done

    def _to_the_end(self, argv: Sequence[Argument], timeout: float, text: str) -> subprocess.CompletedProcess[str]:
        pipe = subprocess.PIPE
        with subprocess.Popen(self.entered(*argv), stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                out, errors = process.communicate(text, timeout)
            except BaseException as error:
                for pid in list(descendants(process.pid)):  # nsenter alone would leave its child running in the node
                    Identity.of(pid).send(signal.SIGKILL)
                process.kill()
                if isinstance(error, subprocess.TimeoutExpired):
                    said = failure(words(argv), -1, str(error.stderr or b"", errors="replace"))
                    raise BedError(f"{self.name}: not done in {timeout:g} s, killed: {said}") from error
                raise
        return subprocess.CompletedProcess(words(argv), process.returncode, out, errors)

    def sh(
        self,
        line: str,
        check: bool = True,
        timeout: float = 120,
        input: str | None = None,  # noqa: A002
    ) -> subprocess.CompletedProcess[str]:
        return self.run("sh", "-c", line, check=check, timeout=timeout, input=input)

    def read(self, path: Argument) -> str:
        return self.run("cat", path).stdout

    def write(self, path: Argument, text: str) -> None:
        place, folder = shlex.quote(os.fspath(path)), shlex.quote(os.fspath(Path(path).parent))
        self.sh(f"mkdir -p {folder} && cat > {place}", input=text)

    def put(self, source: Argument, target: Argument) -> None:
        """A file or a whole folder, under the name `target`, with its modes; owned by root."""
        source, target = Path(source), Path(target)
        pack = ["tar", "-C", str(source), "--owner=0", "--group=0", "-cf", "-", "."]
        unpack = f"mkdir -p {shlex.quote(str(target))} && tar -C {shlex.quote(str(target))} -xf -"
        if source.is_file():
            pack[2], pack[-1] = str(source.parent), source.name
            rename = f"--transform='s,.*,{target.name},'"
            folder = shlex.quote(str(target.parent))
            unpack = f"mkdir -p {folder} && tar -C {folder} {rename} -xf -"
        with subprocess.Popen(pack, stdout=subprocess.PIPE) as packer:
            done = subprocess.run(
                self.entered("sh", "-c", unpack), stdin=packer.stdout, capture_output=True, text=True, check=False
            )
        if packer.returncode or done.returncode:
            raise BedError(f"{self.name}: cannot put {source} to {target}: {done.stderr.strip()}")

    def journal(self, unit: str, *options: str) -> str:
        return self.run("journalctl", "--no-pager", "-o", "cat", "-u", unit, *options).stdout

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
        """Asked by the test client over the management network; OSError when nobody answers."""
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
        wanted = re.compile(pattern)
        found = [
            inner
            for inner, pid in self._processes().items()
            if wanted.search(command_name(pid)) or wanted.search(command_line(pid))
        ]
        return sorted(found)

    def kill(self, pid: int, number: int) -> None:
        """Signal the process that the node knows by this pid; ProcessLookupError when there is none."""
        if pid <= 1:
            raise ValueError(f"will not signal pid {pid}")
        if (outer := self._processes().get(pid)) is None:
            raise ProcessLookupError(f"{self.name} has no process {pid}")
        Identity.of(outer).send(number)
