"""Fixtures that more than one kind of test needs."""

import faulthandler
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from deb.targets import ARCHITECTURES, Architecture

CHECKOUT = Path(__file__).parents[1]
DOWNLOADS = CHECKOUT / "build/wheels"
# A package with the same files, made in 5 s of a processor rather than in 40.
os.environ.setdefault("DPKG_DEB_COMPRESSOR_LEVEL", "1")


def crash_file(worker: str) -> Path:
    return CHECKOUT / f"build/crash-{worker}.txt"


@pytest.hookimpl(trylast=True)  # after pytest's own, whose lines of every thread come long before the summary
def pytest_configure(config: pytest.Config) -> None:
    """Let a worker that crashes say in which line."""
    if worker := getattr(config, "workerinput", {}).get("workerid"):
        crash_file(worker).parent.mkdir(exist_ok=True)
        faulthandler.enable(crash_file(worker).open("w"), all_threads=False)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report: pytest.TestReport) -> None:
    with suppress(OSError):
        report.longrepr = f"{report.longrepr}\n{crash_file(report.node.gateway.id).read_text()}"


def build(folder: Path, targets: list[Architecture]) -> tuple[Path, ...]:
    from deb import build, source  # which take half a second, and most tests need no package

    return build.build(source.read(CHECKOUT), DOWNLOADS, folder, targets)


def native() -> Architecture:
    name = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
    return next(one for one in ARCHITECTURES if one.debian == name)


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The .deb of this checkout, for this machine's architecture."""
    return build(tmp_path_factory.mktemp("deb"), [native()])[0]


@pytest.fixture(scope="session")
def packages(package: Path) -> dict[str, Path]:
    """The .deb files of this checkout by architecture; beside each other, as in `dist`."""
    others = [one for one in ARCHITECTURES if one != native()]
    built = build(package.parent, others)
    return {native().debian: package} | {one.debian: file for one, file in zip(others, built, strict=True)}


@pytest.fixture(scope="session")
def signing_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Fingerprint of a throw-away key, in a home of gpg's that GNUPGHOME names from here on."""
    from release import find_key

    home = tmp_path_factory.mktemp("gnupg")
    home.chmod(0o700)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GNUPGHOME", str(home))
        made = ("gpg", "--batch", "--passphrase", "", "--quick-generate-key", "throw-away", "ed25519", "sign", "never")
        subprocess.run(made, capture_output=True, check=True)
        yield find_key("throw-away")
        subprocess.run(["gpgconf", "--kill", "all"], check=True)
