"""One machine of QEMU: a power switch, links that can be cut, and a root shell by its agent."""

import base64
import hashlib
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.bed.command import Argument, BedError, failure, run, words
from tests.bed.qemu import disk
from tests.bed.qemu.channel import Channel
from tests.bed.shell import ENVIRONMENT
from tests.bed.space import tail

MEMORY_MIB = 1024
BOOT_SECONDS = 400.0
"""90 s where it has a core to itself."""
SPARE = "spare"
"""A PCIe device that may fail: nothing needs it once the machine is up."""


@dataclass
class Machine:
    """Dies with the process that made it."""

    name: str
    base: Path
    """Kernel and RAM disk."""
    folder: Path
    """The disk that it starts from; and what is its own: what it changes of it, sockets, console."""
    peer: str
    """The machine at the other end of its two cables."""
    options: tuple[str, ...] = ()
    """More of QEMU's."""
    kernel_options: str = ""
    ends_at_reset: bool = True
    """False: it starts again by itself, as real ones do; memory, devices and their state stay."""
    _process: subprocess.Popen[bytes] | None = None
    _agent: Channel | None = None
    _monitor: Channel | None = field(default=None, repr=False)

    # Power

    def boot(self) -> None:
        self.power_on()
        self.wait_up()

    def power_on(self) -> None:
        image = self.folder / f"{self.name}.qcow2"
        if not image.exists():
            backing = ("-b", self.folder / disk.DISK, "-F", "raw")
            run("qemu-img", "create", "-q", "-f", "qcow2", *backing, image)
        wrapped = ["setpriv", "--pdeathsig", "KILL", *self._command(image)]  # it dies with this process
        with self._at("log").open("wb") as log:
            self._process = subprocess.Popen(wrapped, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self._monitor = Channel(self._at("monitor"))
            self._monitor.call("qmp_capabilities")
        except BedError as error:
            raise BedError(f"{self.name} does not start: {tail(self._at('log'))}") from error

    def wait_up(self, seconds: float = BOOT_SECONDS) -> None:
        self._agent = Channel(self._at("agent"))
        try:
            self._agent.sync(seconds)
        except (BedError, OSError) as error:
            raise BedError(f"{self.name} does not boot: {tail(self._at('console'))}") from error
        self.run("systemctl", "is-system-running", "--wait", check=False, timeout=seconds)

    def powercut(self) -> None:
        """The plug is pulled."""
        for channel in (self._agent, self._monitor):
            if channel is not None:
                channel.close()
        self._agent = self._monitor = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        for end in ("agent", "monitor", "0", "1"):
            self._at(end).unlink(missing_ok=True)

    def _command(self, image: Path) -> list[str]:
        return words([
            *self._board(image), "-nodefaults", "-display", "none", "-accel", "tcg",
            *["-no-reboot"] * self.ends_at_reset,
            "-serial", f"file:{self._at('console')}",
            "-qmp", f"unix:{self._at('monitor')},server=on,wait=off",
            "-device", "virtio-serial",
            "-chardev", f"socket,id=agent,path={self._at('agent')},server=on,wait=off",
            "-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
            *self._cables(), *self.options,
        ])  # fmt: skip

    def _board(self, image: Path) -> list[Argument]:
        """QEMU for the machine's architecture, with kernel and disk."""
        return [
            "qemu-system-x86_64", "-machine", "q35", "-cpu", "Nehalem", "-m", str(MEMORY_MIB),
            "-kernel", self.base / disk.KERNEL, "-initrd", self.base / disk.RAM_DISK,
            "-append", self._kernel_line("/dev/vda", "ttyS0"),
            "-drive", f"file={image},format=qcow2,if=virtio",
            "-device", "pcie-root-port,id=slot2,chassis=2",
            "-device", f"virtio-rng-pci,id={SPARE},bus=slot2,aer=on",
        ]  # fmt: skip

    def _kernel_line(self, root: str, console: str) -> str:
        machine_id = hashlib.md5(self.name.encode(), usedforsecurity=False).hexdigest()
        return (
            f"root={root} rw console={console} quiet panic=-1 net.ifnames=0 TERM=dumb "
            f"systemd.hostname={self.name} systemd.machine_id={machine_id} systemd.getty_auto=no "
            f"systemd.default_timeout_start_sec=600 systemd.default_device_timeout_sec=600 {self.kernel_options}"
        )

    def _cables(self) -> list[str]:
        """Two, straight to the other machine, each by a PCIe port of its own: eth0 and eth1 there."""
        options = []
        for port in ("0", "1"):
            far = self.folder / f"{self.peer}.{port}"
            end = f"local.type=unix,local.path={self._at(port)},remote.type=unix,remote.path={far}"
            mac = f"52:54:00:00:{int(self.name[-1]):02x}:{int(port):02x}"
            options += ["-netdev", f"dgram,id=cable{port},{end}"]
            options += ["-device", f"pcie-root-port,id=slot{port},chassis={port}"]
            card = f"virtio-net-pci,id=card{port},bus=slot{port},netdev=cable{port},mac={mac},aer=on"
            options += ["-device", f"{card},speed=200000,duplex=full"]
        return options

    def _at(self, end: str) -> Path:
        return self.folder / f"{self.name}.{end}"

    # Its hardware

    def cable(self, port: int, is_in: bool) -> None:
        """The carrier on this side; the other machine's stays, as with a dead transceiver."""
        self._qemu().call("set_link", {"name": f"cable{port}", "up": is_in})

    def slow_disk(self, operations: int) -> None:
        """So many a second at most; 0 is no limit."""
        self.monitor(f"block_set_io_throttle virtio0 0 0 0 {operations} 0 0")

    def monitor(self, line: str) -> str:
        """For actions without a QMP command."""
        return str(self._qemu().call("human-monitor-command", {"command-line": line}))

    def _qemu(self) -> Channel:
        if self._monitor is None:
            raise BedError(f"{self.name} is off")
        return self._monitor

    # Its inside

    def run(
        self,
        *argv: Argument,
        check: bool = True,
        timeout: float = 120,
        input: str | bytes = "",  # noqa: A002
    ) -> subprocess.CompletedProcess[str]:
        """As root, with a plain environment."""
        if self._agent is None:
            raise BedError(f"{self.name} is off")
        command = [*ENVIRONMENT, *words(argv)]
        given = base64.b64encode(input.encode() if isinstance(input, str) else input).decode()
        options = {"path": command[0], "arg": command[1:], "capture-output": True, "input-data": given}
        pid = self._agent.call("guest-exec", options, timeout)["pid"]
        deadline, pause = time.monotonic() + timeout, 0.05
        while not (status := self._agent.call("guest-exec-status", {"pid": pid}, timeout))["exited"]:
            if time.monotonic() > deadline:
                raise BedError(f"{self.name}: not done in {timeout:g} s: {' '.join(words(argv))}")
            time.sleep(pause)
            pause = min(pause * 1.5, 1.0)
        out, errors = (
            base64.b64decode(status.get(key, "")).decode(errors="replace") for key in ("out-data", "err-data")
        )
        done = subprocess.CompletedProcess(words(argv), status.get("exitcode", -status.get("signal", 0)), out, errors)
        if check and done.returncode:
            raise BedError(f"{self.name}: " + failure(words(argv), done.returncode, errors or out))
        return done

    def sh(self, line: str, check: bool = True, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return self.run("sh", "-c", line, check=check, timeout=timeout)

    def read(self, path: Argument) -> str:
        return self.run("cat", path).stdout

    def write(self, path: Argument, content: str | bytes) -> None:
        self.run("sh", "-c", 'mkdir -p "$(dirname "$0")" && cat > "$0"', os.fspath(path), input=content)
