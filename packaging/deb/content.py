"""What the package puts on a machine, file by file."""

from __future__ import annotations

import gzip
import io
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import completions
from deb import changelog, components, papers
from deb.errors import BuildError
from deb.source import Source
from deb.targets import Architecture
from deb.tree import Tree
from deb.vendor import Vendored
from sparkd.base.config import units
from sparkd.base.lib.text import reflow

DOC = "usr/share/doc/sparkd"
_CODE_FONT = re.compile(rb"\\fC|\\f\(C[RW]")
"""No terminal has it; manual pages show code in bold."""
_TEXT = re.compile(r"(?<=^```text\n)(?s:.*?)(?=^```$)", re.MULTILINE)
"""man(1) breaks no line of a block."""
MAN_COLUMNS = 72
"""Of a terminal's 80, behind the margin."""


def fill(tree: Tree, source: Source, vendored: Vendored, architecture: Architecture) -> None:
    """Everything but the libraries, which are there already."""
    _program(tree, source)
    _shared(tree, source)
    _system(tree, source)
    _documentation(tree, source)
    _papers(tree, source, vendored, architecture)


def _program(tree: Tree, source: Source) -> None:
    for path in source.program():
        tree.add(f"usr/lib/sparkd/app/{path}", (source.root / "src" / path).read_bytes())
    tree.add("usr/bin/sparkd", source.text("packaging/debian/launcher").encode(), 0o755)


def _shared(tree: Tree, source: Source) -> None:
    data = source.root / "src/sparkd/data"
    for path in sorted(data.iterdir()):
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            tree.add(f"usr/share/sparkd/{file.relative_to(data)}", file.read_bytes())
    for file in sorted((source.root / "config/grafana").iterdir()):
        tree.add(f"usr/share/sparkd/grafana/{file.name}", file.read_bytes())
    # The program finds its data where a checkout and a wheel have it; people find it in /usr/share.
    tree.link("usr/lib/sparkd/app/sparkd/data", "../../../../share/sparkd")


def _system(tree: Tree, source: Source) -> None:
    for path, text in units.package_units().items():
        tree.add(path[1:], text.encode())
    tree.add("usr/lib/systemd/system-preset/80-sparkd.preset", source.text("packaging/debian/preset").encode())
    # Folders, no files: what stands in /etc belongs to the administrator, and no upgrade ever prompts for it.
    for name in ("conf.d", "recipes", "preflight.d"):
        tree.folder(f"etc/sparkd/{name}")
    # For the link that postinst makes.
    tree.folder("etc/needrestart/conf.d")
    tree.add("usr/share/sparkd/needrestart.conf", source.text("packaging/debian/needrestart.conf").encode())
    rtupdate = source.text("packaging/debian/rtupdate").encode()
    tree.add("usr/share/python3/runtime.d/sparkd.rtupdate", rtupdate, 0o755)
    for shell, path in completions.FILES.items():
        tree.add(path, completions.render(shell).encode())


def _documentation(tree: Tree, source: Source) -> None:
    pages = set((source.root / "docs").rglob("*.[1-9].md"))
    for page in sorted(pages):
        name, section = page.name.removesuffix(".md").rsplit(".", 1)
        tree.add(f"usr/share/man/man{section}/{name}.{section}.gz", _gzip(_roff(page, name, section, source)))
    of_the_source = {source.root / "docs/architecture.md", source.root / "docs/releasing.md"}  # their links lead there
    for paper in sorted({*(source.root / "docs").glob("*.md")} - pages - of_the_source):
        tree.add(f"{DOC}/{paper.name}", paper.read_bytes())
    for example in sorted((source.root / "config").glob("*.toml")):
        tree.add(f"{DOC}/examples/{example.name}", example.read_bytes())
    text = changelog.debian(source.text("CHANGELOG.md"), source.version, source.epoch)
    tree.add(f"{DOC}/changelog.gz", _gzip(text.encode()))


def _papers(tree: Tree, source: Source, vendored: Vendored, architecture: Architecture) -> None:
    own = source.text("packaging/debian/copyright.in")
    notices = components.read(source.text("packaging/debian/notices.toml"))
    texts = {file.stem: file.read_text("utf-8") for file in (source.root / "packaging/debian/licences").glob("*.txt")}
    tree.add(f"{DOC}/copyright", papers.copyright_text(own, vendored, notices, texts).encode())
    tree.add(f"{DOC}/sbom/sparkd.cdx.json", papers.sbom(source.version, architecture, vendored, notices))
    for one in vendored.sboms:
        tree.add(f"{DOC}/sbom/{one.name}.json", one.content)


def _roff(page: Path, name: str, section: str, source: Source) -> bytes:
    date = f"{datetime.fromtimestamp(source.epoch, UTC):%Y-%m-%d}"
    metadata = {"title": name, "section": section, "date": date, "source": f"sparkd {source.version}"}
    command = [
        "lowdown",
        "-s",
        "-Tman",
        "--out-no-smarty",
        "--parse-no-intraemph",  # names with underscores
        *(f"-m{key}:{value}" for key, value in metadata.items()),
    ]
    narrow = _TEXT.sub(lambda block: f"{reflow(block[0], MAN_COLUMNS)}\n", page.read_text())
    try:
        text = subprocess.run(command, input=narrow.encode(), capture_output=True, check=True).stdout
    except FileNotFoundError:
        raise BuildError("lowdown is missing, which makes the manual pages: packaging/tools.sh as root") from None
    return _CODE_FONT.sub(rb"\\fB", text)


def _gzip(content: bytes) -> bytes:
    # Not gzip.compress, whose header depends on the version of Python.
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, packed, mtime=0) as stream:
        stream.write(content)
    return packed.getvalue()
