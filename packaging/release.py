"""`python -m release`: all that a release publishes, in dist/release.

docs/releasing.md has its files. A commit always gives the same bytes, except signatures.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import format_datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from deb import changelog, source
from deb.build import build
from deb.content import DOC
from deb.errors import BuildError
from deb.source import Source
from deb.targets import ARCHITECTURES

CHECKOUT = Path(__file__).parents[1]
SIGNATURES = ("InRelease", "SHA256SUMS.asc")
_SUITE = "stable"
_SHA256_ALONE = [f"--option=APT::FTPArchive::{name}=no" for name in ("MD5", "SHA1", "SHA512")]
_NO_KEY = """\
apt takes no repository without a signature: name the key, and the address that will serve dist/release/apt:
make release KEY=FINGERPRINT URL=https://HOST/apt
or, to compare bytes only:
make release UNSIGNED=1"""


class Publisher(NamedTuple):
    key: str
    """Fingerprint of a secret key of gpg's."""
    url: str
    """Of the folder `apt`."""


def make(
    origin: Source, packages: Sequence[Path], earlier: Sequence[Path], publisher: Publisher | None, out: Path
) -> None:
    """Replace the folder `out`. Without a publisher nothing in it is signed, and no machine can add the repository."""
    notes = changelog.notes(origin.text("CHANGELOG.md"), origin.version)
    if out.exists():
        shutil.rmtree(out)
    pool = out / "apt/pool/main/s/sparkd"
    pool.mkdir(parents=True)
    for package in (*earlier, *packages):
        shutil.copy(package, pool)
    for package in packages:
        shutil.copy(package, out)
        (out / f"{package.stem}.cdx.json").write_bytes(_sbom(package))
    (out / "NOTES.md").write_text(notes, encoding="utf-8")
    release = _index(out / "apt", origin.epoch)
    if publisher:
        public = _run("gpg", "--batch", "--armor", "--export-options=export-minimal", "--export", publisher.key)
        (out / "sparkd.asc").write_text(public, encoding="ascii")
        script = origin.text("packaging/install.sh.in")
        for name, value in (("KEY", public.rstrip()), ("FINGERPRINT", publisher.key), ("URL", publisher.url)):
            script = script.replace(f"@{name}@", value)
        (out / "install.sh").write_text(script, encoding="utf-8")
        _sign(publisher.key, "--clear-sign", release, release.with_name("InRelease"))
    files = (file for file in sorted(out.rglob("*")) if file.is_file() and file.name not in SIGNATURES)
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(out)}\n" for file in files]
    (out / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    if publisher:
        _sign(publisher.key, "--detach-sign", out / "SHA256SUMS", out / "SHA256SUMS.asc")


def check_version(origin: Source, wanted: str | None) -> None:
    """Raises BuildError where it is not the one that is wanted, or not what its tag has, as far as git can say."""
    if wanted and wanted != origin.version:
        raise BuildError(f"this checkout makes {origin.version}, not {wanted}:\ngit checkout v{wanted}")
    status = source.git(origin.root, "status", "--porcelain", "--branch", "--untracked-files=normal").splitlines()
    if "~git" not in origin.version and len(status) != 1:  # that of the branch; without a repository there is none
        raise BuildError(f"files differ from those of the tag v{origin.version}:\ngit status")


def find_key(name: str) -> str:
    """The fingerprint. Raises BuildError where `name` is not that of exactly one secret key."""
    listed = _run("gpg", "--batch", "--with-colons", "--list-secret-keys", "--", name)
    fields = [line.split(":") for line in listed.splitlines()]
    keys = [after[9] for before, after in pairwise(fields) if (before[0], after[0]) == ("sec", "fpr")]
    if len(keys) != 1:
        raise BuildError(f"{len(keys)} secret keys are named {name}; give the fingerprint of the one:\ngpg -K")
    return keys[0]


def _index(apt: Path, epoch: int) -> Path:
    """Packages and Release; returns the latter."""
    dists = apt / "dists" / _SUITE
    for architecture in ARCHITECTURES:
        folder = dists / "main" / f"binary-{architecture.debian}"
        folder.mkdir(parents=True)
        words = (*_SHA256_ALONE, "--arch", architecture.debian, "packages", "pool")
        (folder / "Packages").write_text(_run("apt-ftparchive", *words, folder=apt), encoding="utf-8")
    fields = {"Origin": "sparkd", "Label": "sparkd", "Suite": _SUITE, "Codename": _SUITE, "Components": "main"}
    fields["Architectures"] = " ".join(architecture.debian for architecture in ARCHITECTURES)
    options = [f"--option=APT::FTPArchive::Release::{name}={value}" for name, value in fields.items()]
    text = _run("apt-ftparchive", *_SHA256_ALONE, *options, "release", ".", folder=dists)
    # apt-ftparchive 2.6 takes the clock's time, whatever SOURCE_DATE_EPOCH says.
    date = f"Date: {format_datetime(datetime.fromtimestamp(epoch, UTC))}"
    (dists / "Release").write_text(re.sub("^Date: .*$", date, text, flags=re.MULTILINE), encoding="utf-8")
    return dists / "Release"


def _sbom(package: Path) -> bytes:
    packed = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(package)], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as tree:
        stream = tree.extractfile(f"./{DOC}/sbom/sparkd.cdx.json")
        assert stream is not None, "it is a regular file"
        return stream.read()


def _sign(key: str, form: str, file: Path, signed: Path) -> None:
    _run("gpg", "--batch", "--yes", "--armor", "--local-user", key, "--output", str(signed), form, str(file))


def _run(*words: str, folder: Path | None = None) -> str:
    try:
        env = {**os.environ, "LC_ALL": "C.UTF-8"}
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise BuildError(f"{words[0]} is missing; as root:\npackaging/tools.sh") from None
    if done.returncode:
        raise BuildError(f"{words[0]}: {done.stderr.strip()}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(prog="release", description="Make dist/release of this checkout.")
    parser.add_argument("--key", help="secret key of gpg's that signs")
    parser.add_argument("--url", help="address that will serve the folder `apt`")
    parser.add_argument("--unsigned", action="store_true", help="no signature, to compare bytes")
    parser.add_argument("--version", help="refuse, unless this checkout is that version")
    parser.add_argument(
        "--earlier", type=Path, help="folder of the .deb files of earlier releases, to be kept in `apt`"
    )
    parser.add_argument("--out", type=Path, default=CHECKOUT / "dist/release")
    args = parser.parse_args()
    try:
        origin = source.read(CHECKOUT)
        check_version(origin, args.version)
        if not args.unsigned and not (args.key and args.url):
            raise BuildError(_NO_KEY)
        publisher = None if args.unsigned else Publisher(find_key(args.key), args.url)
        earlier = sorted(args.earlier.resolve(strict=True).glob("sparkd_*.deb")) if args.earlier else []
        packages = build(origin, CHECKOUT / "build/wheels", args.out.parent, ARCHITECTURES)
        make(origin, packages, earlier, publisher, args.out)
    except (BuildError, OSError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(f"{args.out}: sparkd {origin.version}, {f'signed by {publisher.key}' if publisher else 'not signed'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
