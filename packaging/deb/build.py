"""From the checkout to the .deb files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from string import Template

from deb import closure, lock, root, vendor
from deb.errors import BuildError
from deb.source import Source
from deb.targets import Architecture
from deb.tree import Tree

SCRIPTS = ("postinst", "prerm", "postrm")


def build(source: Source, work: Path, out: Path, architectures: Iterable[Architecture]) -> tuple[Path, ...]:
    """Write one .deb for each architecture into `out`. `work` keeps the downloads for the next time."""
    downloads = work / "downloads"
    pins = closure.fetch(source.dependencies, lock.read(source.text("requirements.lock")), downloads)
    out.mkdir(parents=True, exist_ok=True)
    built = []
    for architecture in architectures:
        tree = Tree()
        vendored = vendor.lay_out(pins, downloads, architecture, tree)
        root.fill(tree, source, vendored, architecture)
        built.append(_pack(tree, source, architecture, work / architecture.debian, out))
    return tuple(built)


def _pack(tree: Tree, source: Source, architecture: Architecture, folder: Path, out: Path) -> Path:
    md5sums, installed_kib = tree.md5sums, tree.installed_kib
    values = {"version": source.version, "architecture": architecture.debian, "installed_kib": str(installed_kib)}
    control = Template(source.text("packaging/debian/control.in")).substitute(values)
    tree.add("DEBIAN/control", control.encode())
    tree.add("DEBIAN/md5sums", md5sums.encode())
    for script in SCRIPTS:
        tree.add(f"DEBIAN/{script}", source.text(f"packaging/debian/{script}").encode(), 0o755)
    tree.write(folder, source.epoch)
    for old in out.glob(f"sparkd_*_{architecture.debian}.deb"):
        old.unlink()
    package = out / f"sparkd_{source.version}_{architecture.debian}.deb"
    # One thread: the bytes depend on nothing of the machine that builds.
    command = ["dpkg-deb", "--root-owner-group", "--threads-max=1", "-Zxz", "-z9", "--build", str(folder), str(package)]
    done = subprocess.run(
        command,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(source.epoch)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BuildError(f"dpkg-deb: {done.stderr.strip()}")
    return package
