"""Commands and files inside a node, through a root shell."""

import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import registry
from .cgroups import NodeGroup
from .command import Argument, BedError, failure, words
from .processes import Identity, children, descendants, identities, nested_pids
from .space import Space
from .tree import PATH

ENVIRONMENT = ("env", "-i", f"PATH={PATH}", "HOME=/root", "USER=root", "LANG=C.UTF-8", "TERM=dumb")
DEPTH = 3  # pid namespaces: this machine's, the bed's, the node's


class OffError(BedError):
    """There is no machine to run a command in."""


@dataclass(frozen=True)
class Shell:
    bed: str
    name: str
    space: Space
    docker: bool

    @property
    def group(self) -> NodeGroup:
        return NodeGroup(self.bed, self.name)

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

    def _pid_one(self) -> Identity:
        found = identities([self.init or 0])
        if not found:
            raise OffError(f"{self.name} is off")
        return found[0]

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
                for child in identities(descendants(process.pid)):  # else they would run on in the node
                    child.send(signal.SIGKILL)
                process.kill()
                if isinstance(error, subprocess.TimeoutExpired):
                    reason = failure(words(argv), -1, str(error.stderr or b"", errors="replace"))
                    raise BedError(f"{self.name}: not done in {timeout:g} s, killed: {reason}") from error
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
