"""A root file system in a folder, and commands run inside it by chroot."""

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .command import BedError, failure

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEADLINE = 3600.0  # for one command, on a slow line


@dataclass(frozen=True)
class Tree:
    root: Path

    def run(self, *argv: str, env: Mapping[str, str] | None = None, binds: Sequence[Path] = ()) -> str:
        """Run inside the tree, with the network of this machine and `binds` read-only at their own paths."""
        made: list[Path] = []
        sources = [Path("/etc/resolv.conf"), Path("/etc/hosts"), *binds]
        script = [mount for source in outermost(sources) for mount in self._bind(source, made)]
        environment = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **(env or {})}
        inside = ["env", "-i", *(f"{name}={value}" for name, value in environment.items()), *argv]
        root = shlex.quote(str(self.root))
        script += [
            f"mount -t proc proc {root}/proc",
            f"mount --rbind /dev {root}/dev",
            f"mount -t tmpfs tmpfs {root}/tmp",
            f"exec chroot {root} {shlex.join(inside)}",
        ]
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", "\n".join(script)]
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=DEADLINE
            )
        finally:
            for path in reversed(made):
                path.rmdir() if path.is_dir() else path.unlink()
        if done.returncode:
            raise BedError(failure(inside, done.returncode, done.stderr or done.stdout))
        return done.stdout

    def _bind(self, source: Path, made: list[Path]) -> list[str]:
        """The mount commands for `source`; mount points that had to be made are noted, to be removed again."""
        target = self.root / source.relative_to("/")
        for parent in reversed(target.parents):
            if not parent.exists():
                parent.mkdir()
                made.append(parent)
        if not target.exists():
            target.mkdir() if source.is_dir() else target.touch()
            made.append(target)
        real, place = shlex.quote(str(source.resolve())), shlex.quote(str(target))
        return [f"mount --rbind {real} {place}", f"mount -o remount,bind,ro {place}"]


def outermost(paths: Sequence[Path]) -> list[Path]:
    """Those that exist and lie in no other of them."""
    real = sorted({path for path in paths if path.exists()})
    return [path for path in real if not any(parent in real for parent in path.parents)]
