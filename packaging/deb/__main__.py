"""`python -m deb [--out FOLDER] [ARCHITECTURE ...]`: builds the packages of this checkout."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deb import source
from deb.build import build
from deb.errors import BuildError
from deb.targets import ARCHITECTURES

CHECKOUT = Path(__file__).parents[2]


def main() -> int:
    names = [architecture.debian for architecture in ARCHITECTURES]
    parser = argparse.ArgumentParser(prog="deb", description="Build the Debian packages of this checkout.")
    parser.add_argument("architectures", nargs="*", metavar="ARCHITECTURE", help=f"of {', '.join(names)}; else all")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "dist", help="folder of the packages")
    parser.add_argument("--downloads", type=Path, default=CHECKOUT / "build/wheels", help="kept for the next time")
    args = parser.parse_args()
    if unknown := set(args.architectures) - set(names):
        parser.error(f"no architecture {', '.join(sorted(unknown))}")
    wanted = [architecture for architecture in ARCHITECTURES if architecture.debian in (args.architectures or names)]
    try:
        for package in build(source.read(CHECKOUT), args.downloads, args.out, wanted):
            print(f"{package} {package.stat().st_size / 1e6:.2f} MB")
    except BuildError as error:
        print(f"deb: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
