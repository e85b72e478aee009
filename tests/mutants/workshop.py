"""A copy of the tree in which the unit tests meet a mutant, apart from everything else on the machine.

A mutant may do what no test expects. So the tests run in namespaces of their own: they reach no process of others, and
write only the copy and their temporary files.
"""

import ast
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.count.source import imported_names
from tests.mutants.draw import SOURCE, Mutant

UNIT = "tests/unit"
TEST_SECONDS, TIMES = 90, 3
"""A test takes up to 30 s on a busy machine."""
MEMORY_KIB = 8 << 20
"""Of address space: a loop without end may allocate."""
KILLED, SURVIVED, UNCLEAR = "killed", "survived", "unclear"
"""Unclear: the test that fails with the mutant fails without it, too."""
FAILED = r"(?:FAILED|ERROR) (\S+?)(?:\[| - |$)"
BEGUN = r"(tests/\S+?::\S+?)(?:\[| |$)"
"""Of pytest's output; a test with all its parameters."""
ISOLATED = f"""
mount --bind "$SCRATCH" "$SCRATCH"
mount --bind "$ROOT/.venv" "$SCRATCH/tree/.venv"
mount -o remount,bind,ro "$SCRATCH/tree/.venv"
mount --rbind "$SCRATCH/tree" "$ROOT"
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /mnt
mount --bind /proc/sys /proc/sys
for path in / /dev /sys /proc/sys; do mount -o remount,bind,ro "$path"; done
cd "$ROOT"
ulimit -v {MEMORY_KIB}
"$@" || exit $?
"""
"""The copy stands where the tree is: .venv has its path written down. The shell is process 1: tests take their own
process for that of a container.
"""


def choose_tests(root: Path, module: str, package: str) -> tuple[str, ...]:
    """Test files that concern a module: those that import it, then the others of its package."""
    importing, others = [], []
    folder = f"{UNIT}/{package.rpartition('/')[2]}/"
    for path in sorted((root / UNIT).rglob("test_*.py")):
        name = path.relative_to(root).as_posix()
        if module in imported_names(ast.parse(path.read_text(encoding="utf-8"))):
            importing.append(name)
        elif name.startswith(folder):
            others.append(name)
    return (*sorted(importing, key=lambda name: not name.startswith(folder)), *others)


class Workshop:
    """A copy of the tracked files of `root`, and the folder for temporary files of the tests that run on it."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self.tree = scratch / "tree"
        self._root, self._scratch = root, scratch
        self._turn = 0
        for folder in ("tree/.venv", "tmp"):
            (scratch / folder).mkdir(parents=True)
        scratch.chmod(0o755)  # tests act as other users, too
        (scratch / "tmp").chmod(0o1777)
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
        for name in filter(None, tracked.decode().split("\0")):
            target = self.tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target, follow_symlinks=False)

    def judge(self, mutant: Mutant, tests: Sequence[str]) -> tuple[str, str]:
        """KILLED, SURVIVED or UNCLEAR, and the test that failed."""
        path = self.tree / SOURCE / mutant.path
        source = path.read_bytes()
        self._write(path, mutant.apply(source))
        try:
            failed = self.run(tests, TEST_SECONDS)
        finally:
            self._write(path, source)
        if not failed:
            return SURVIVED, ""
        return UNCLEAR if self.run((failed,), TEST_SECONDS // TIMES) else KILLED, failed

    def run(self, tests: Sequence[str], seconds: int) -> str:
        """The first test that fails, or takes longer than `seconds`; empty where all pass."""
        pytest = ("-m", "pytest", "-x", "-vv", "-rfE", "--tb=no", "-p", "no:xdist", f"--timeout={seconds}")
        command = (
            *("unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc", "sh", "-ec", ISOLATED),
            *("sh", f"{self._root}/.venv/bin/python", *pytest, *tests),
        )
        folders = {"ROOT": str(self._root), "SCRATCH": str(self._scratch), "TMPDIR": f"{self._scratch}/tmp"}
        env = {**os.environ, **folders, "HOME": "/mnt", "PYTHONDONTWRITEBYTECODE": ""}
        output = self._scratch / "output"
        with output.open("wb") as file, subprocess.Popen(command, env=env, stdout=file, stderr=file) as process:
            try:
                _await_end(process, output, 2 * seconds)
            finally:
                process.kill()
        if not process.returncode:
            return ""
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
        failed = [match[1] for line in lines if (match := re.match(FAILED, line))]
        begun = [match[1] for line in lines if (match := re.match(BEGUN, line))]
        return (failed or begun[-1:] or list(tests))[0]

    def _write(self, path: Path, source: bytes) -> None:
        """With a time of its own, by which Python knows that its compiled form is of another source."""
        self._turn += 1
        path.write_bytes(source)
        os.utime(path, (self._turn, self._turn))


def _await_end(process: subprocess.Popen[bytes], output: Path, seconds: float) -> None:
    """Return also where `output` has not grown for `seconds`: pytest can't end the test."""
    size, grown_at = 0, time.monotonic()
    while process.poll() is None and time.monotonic() - grown_at < seconds:
        time.sleep(0.2)
        if (grown := output.stat().st_size) > size:
            size, grown_at = grown, time.monotonic()
