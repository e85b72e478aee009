"""The namespaces of a bed, seen from outside: made with a keeper, entered with nsenter, ended with the keeper."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .command import Argument, BedError, run, words
from .processes import Identity, children, nested_pids, wait_for

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Space:
    keeper: Identity

    @classmethod
    def make(cls, log: Path) -> Space:
        """A space that lives as long as this process, at most."""
        owner = Identity.of(os.getpid())
        command = [sys.executable, "-m", "tests.bed.keeper", str(owner.pid), str(owner.start)]
        with log.open("ab") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment(),
                start_new_session=True,
            )
        assert process.stdout is not None
        answer = process.stdout.readline().strip()
        process.stdout.close()
        if not answer:
            raise BedError(f"the bed's keeper did not start: {log.read_text().strip()}")
        keeper = Identity.of(int(answer))
        _parents[keeper] = process
        return cls(keeper)

    def entered(self, *argv: Argument) -> list[str]:
        """The command that runs `argv` in here."""
        return ["nsenter", "-t", str(self.keeper.pid), "-m", "-n", "-p", "--", *words(argv)]

    def run(self, *argv: Argument, check: bool = True, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return run(*self.entered(*argv), check=check, timeout=timeout, env=environment())

    def module(self, name: str, *argv: Argument, timeout: float = 900) -> str:
        """Run a module of this package in here."""
        return self.run(sys.executable, "-m", f"tests.bed.{name}", *argv, timeout=timeout).stdout

    def spawn(self, log: Path, *argv: Argument) -> Identity:
        """Start `argv` in here, as a child of the keeper: it outlives its caller, never the space."""
        started = self.entered("sh", "-c", 'setsid "$@" >&2 </dev/null & echo $!', "sh", *argv)
        with log.open("ab") as output:
            done = subprocess.run(
                started, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output, env=environment()
            )
        inner = int(done.stdout)

        def outer() -> int | None:
            mine = [pid for pid in children(self.keeper.pid) if nested_pids(pid)[-1:] == [inner]]
            return mine[0] if mine else None

        try:
            return Identity.of(wait_for(lambda: outer() or 0, 5, f"{argv[0]} to start"))
        except (BedError, ProcessLookupError) as error:
            raise BedError(f"{argv[0]} ended at once: {tail(log)}") from error

    def close(self) -> None:
        """End every process in here, and with them all mounts, disks and interfaces."""
        self.keeper.end()
        if parent := _parents.pop(self.keeper, None):
            parent.wait(timeout=20)


_parents: dict[Identity, subprocess.Popen[str]] = {}  # of the keepers that this process made: to be reaped


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}


def tail(log: Path, lines: int = 15) -> str:
    return "\n  ".join(log.read_text(errors="replace").strip().splitlines()[-lines:])
