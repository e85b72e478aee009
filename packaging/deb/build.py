"""From the checkout to the .deb files."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from string import Template

from deb import closure, content, lock, vendor
from deb.errors import BuildError
from deb.source import Source
from deb.targets import Architecture
from deb.tree import Tree

SCRIPTS = ("postinst", "prerm", "postrm")


def build(source: Source, downloads: Path, out: Path, architectures: Iterable[Architecture]) -> tuple[Path, ...]:
    """Write one .deb for each architecture into `out`. `downloads` is kept for the next time."""
    pins = closure.fetch(source.dependencies, lock.read(source.text("requirements.lock")), downloads)
    out.mkdir(parents=True, exist_ok=True)
    built = []
    for architecture in architectures:
        tree = Tree()
        vendored = vendor.lay_out(pins, downloads, architecture, tree)
        content.fill(tree, source, vendored, architecture)
        built.append(_pack(tree, source, architecture, out))
    return tuple(built)


def _pack(tree: Tree, source: Source, architecture: Architecture, out: Path) -> Path:
    md5sums, installed_kib = tree.md5sums, tree.installed_kib
    values = {"version": source.version, "architecture": architecture.debian, "installed_kib": str(installed_kib)}
    control = Template(source.text("packaging/debian/control.in")).substitute(values)
    tree.add("DEBIAN/control", control.encode())
    tree.add("DEBIAN/md5sums", md5sums.encode())
    for script in SCRIPTS:
        tree.add(f"DEBIAN/{script}", source.text(f"packaging/debian/{script}").encode(), 0o755)
    for old in out.glob(f"sparkd_*_{architecture.debian}.deb"):
        old.unlink()
    package = out / f"sparkd_{source.version}_{architecture.debian}.deb"
    with tempfile.TemporaryDirectory(prefix="sparkd-deb-") as folder:
        tree.write(Path(folder) / "root", source.epoch)
        _dpkg_deb(Path(folder) / "root", package, source.epoch)
    return package


def _dpkg_deb(root: Path, package: Path, epoch: int) -> None:
    # One thread: the bytes depend on nothing of the machine that builds. The variable is dpkg's own.
    level = f"-z{os.environ.get('DPKG_DEB_COMPRESSOR_LEVEL', '9')}"
    command = ["dpkg-deb", "--root-owner-group", "--threads-max=1", "-Zxz", level, "--build", str(root), str(package)]
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"dpkg-deb: {done.stderr.strip()}")
