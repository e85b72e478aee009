"""`python -m audit`: advisories of OSV for all that requirements.lock pins, and for the Rust crates inside its wheels.

Exit code 1 where there are any, 2 where OSV can't be reached. The crates are those of the wheels in build/wheels, which
`make deb` fetches. OpenSSL and libffi, which are linked into cryptography and cffi, are not in OSV by version: their
advisories are those of cryptography and cffi.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from deb import lock

CHECKOUT = Path(__file__).parents[1]
OSV = "https://api.osv.dev"
MOST_QUERIES = 500
"""In a request; OSV takes 1,000."""
LIMIT_BYTES = 16 << 20
_SBOM = re.compile(r"^[^/]+\.dist-info/sboms/.+\.json$")


def find_packages(requirements: str, wheels: Path) -> list[str]:
    """Package URLs, each with its version."""
    found = [f"pkg:pypi/{pin.name}@{pin.version}" for pin in lock.read(requirements).pins]
    return sorted({*found, *(crate for wheel in sorted(wheels.glob("*.whl")) for crate in _crates(wheel))})


def _crates(wheel: Path) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as archive:
        for name in filter(_SBOM.match, archive.namelist()):
            for component in json.loads(archive.read(name)).get("components", ()):
                if (url := component.get("purl", "").partition("?")[0]).startswith("pkg:cargo/"):
                    yield url


def find_advisories(packages: Sequence[str], osv: str = OSV) -> dict[str, list[str]]:
    """Ids by package URL; those without any are left out. Raises OSError, ValueError."""
    advisories: dict[str, list[str]] = {}
    for begin in range(0, len(packages), MOST_QUERIES):
        some = packages[begin : begin + MOST_QUERIES]
        body = json.dumps({"queries": [{"package": {"purl": package}} for package in some]}).encode()
        request = urllib.request.Request(f"{osv}/v1/querybatch", body, {"Content-Type": "application/json"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - the address is ours
            results = json.loads(answer.read(LIMIT_BYTES))["results"]
        if len(results) != len(some):
            raise ValueError(f"{len(results)} results for {len(some)} packages")
        ids = ([str(vulnerability["id"]) for vulnerability in result.get("vulns", ())] for result in results)
        advisories |= {package: names for package, names in zip(some, ids, strict=True) if names}
    return advisories


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="audit", description="Look up advisories on all that requirements.lock pins.")
    parser.add_argument("--osv", default=OSV, help="address of the database")
    osv = parser.parse_args(words).osv
    wheels = CHECKOUT / "build/wheels"
    packages = find_packages((CHECKOUT / "requirements.lock").read_text(encoding="utf-8"), wheels)
    if not wheels.is_dir():
        print("audit: no Rust crates are looked up: make deb fetches the wheels that they are in", file=sys.stderr)
    try:
        advisories = find_advisories(packages, osv)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        print(f"audit: {osv} can't be read: {error}; run it where that address can be reached", file=sys.stderr)
        return 2
    for package, names in advisories.items():
        print(f"{package}: " + " ".join(f"https://osv.dev/{name}" for name in names))
    print(f"{len(packages)} packages, {len(advisories)} with advisories")
    return 1 if advisories else 0


if __name__ == "__main__":
    raise SystemExit(main())
