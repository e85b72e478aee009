"""`make release`: complete, the same bytes except signatures, and signed so that gpgv trusts it."""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import release
from deb import changelog, source
from deb.errors import BuildError
from release import Publisher

CHECKOUT = Path(__file__).parents[2]
URL = "https://example.org/apt"
SCREEN_LINES, SCREEN_COLUMNS = 50, 80
INDEXES = "apt/dists/stable"


@pytest.fixture(scope="module")
def released(packages: dict[str, Path], signing_key: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("release") / "release"
    release.make(source.read(CHECKOUT), list(packages.values()), [], Publisher(signing_key, URL), out)
    return out


@pytest.fixture(scope="module")
def keyring(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The public key as gpgv reads it."""
    file = tmp_path_factory.mktemp("keyring") / "sparkd.gpg"
    subprocess.run(["gpg", "--dearmor", "--output", file, released / "sparkd.asc"], check=True)
    return file


def files(out: Path) -> dict[str, str]:
    """SHA-256 by path."""
    files = (file for file in out.rglob("*") if file.is_file())
    return {str(file.relative_to(out)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def trusted(keyring: Path, *signed: Path) -> bool:
    return subprocess.run(["gpgv", "--keyring", keyring, *signed], capture_output=True, check=False).returncode == 0


def run(*words: str, umask: int = 0o022, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": "packaging", **environment}
    command = [sys.executable, "-m", "release", *words]
    return subprocess.run(command, cwd=CHECKOUT, env=env, umask=umask, capture_output=True, text=True, check=False)


def test_a_release_has_all_that_is_published(released: Path, packages: dict[str, Path]) -> None:
    debs = [package.name for package in packages.values()]
    assert files(released).keys() == {
        *debs,
        *(name.removesuffix(".deb") + ".cdx.json" for name in debs),
        *(f"apt/pool/main/s/sparkd/{name}" for name in debs),
        *(f"{INDEXES}/main/binary-{architecture}/Packages" for architecture in packages),
        *(f"{INDEXES}/{name}" for name in ("Release", "InRelease")),
        *("NOTES.md", "SHA256SUMS", "SHA256SUMS.asc", "install.sh", "sparkd.asc"),
    }


def test_the_same_commit_gives_the_same_bytes_except_signatures(
    released: Path, signing_key: str, tmp_path: Path
) -> None:
    out = tmp_path / "again/release"
    words = ("--key", "throw-away", "--url", URL, "--out", str(out))
    done = run(*words, umask=0o077, TZ="Asia/Tokyo", LC_ALL="C", PYTHONHASHSEED="7")
    assert done.returncode == 0, done.stderr
    first, second = files(released), files(out)
    differing = {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}
    assert {Path(name).name for name in differing} <= set(release.SIGNATURES)


def test_the_sums_are_of_all_but_signatures(released: Path) -> None:
    check = ("sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS")
    subprocess.run(check, cwd=released, check=True)
    named = {line.split("  ")[1] for line in (released / "SHA256SUMS").read_text().splitlines()}
    assert {Path(name).name for name in files(released).keys() - named} == {"SHA256SUMS", *release.SIGNATURES}


def test_signatures_hold_only_with_the_content_that_was_signed(released: Path, keyring: Path, tmp_path: Path) -> None:
    index, spoilt = released / INDEXES / "InRelease", tmp_path / "InRelease"
    assert trusted(keyring, index)
    assert trusted(keyring, released / "SHA256SUMS.asc", released / "SHA256SUMS")
    assert (index.with_name("Release").read_text()) in index.read_text()
    spoilt.write_text(index.read_text().replace("Suite: stable", "Suite: unstable"))
    assert not trusted(keyring, spoilt)
    assert not trusted(keyring, released / "SHA256SUMS.asc", index)


def test_the_indexes_have_the_packages_by_their_sums(released: Path, packages: dict[str, Path]) -> None:
    sums = files(released)
    for architecture, package in packages.items():
        text = (released / INDEXES / f"main/binary-{architecture}/Packages").read_text()
        fields = dict(re.findall(r"^([\w-]+): (.+)$", text, re.MULTILINE))
        assert text.count("Package: ") == 1
        assert fields["Filename"] == f"pool/main/s/sparkd/{package.name}"
        assert fields["SHA256"] == sums[f"apt/{fields['Filename']}"]
        named = re.search(rf"^ (\w+) +\d+ main/binary-{architecture}/Packages$", text_of(released), re.MULTILINE)
        assert named
        assert named[1] == sums[f"{INDEXES}/main/binary-{architecture}/Packages"]


def text_of(released: Path) -> str:
    return (released / INDEXES / "Release").read_text()


def test_an_earlier_package_stays_installable(package: Path, tmp_path: Path) -> None:
    tree, old = tmp_path / "tree", tmp_path / "sparkd_0.1.0_amd64.deb"
    (tree / "DEBIAN").mkdir(parents=True)
    fields = "Package: sparkd\nVersion: 0.1.0\nArchitecture: amd64\nMaintainer: a <a@b.invalid>\nDescription: old\n"
    (tree / "DEBIAN/control").write_text(fields)
    subprocess.run(["dpkg-deb", "-Znone", "--build", tree, old], check=True, capture_output=True)
    origin = source.read(CHECKOUT)
    release.make(origin, [package], [old], None, tmp_path / "release")
    index = (tmp_path / "release" / INDEXES / "main/binary-amd64/Packages").read_text()
    assert set(re.findall(r"^Version: (.+)$", index, re.MULTILINE)) == {"0.1.0", origin.version}
    assert not list(tmp_path.glob(f"release/{old.name}"))
    assert not [name for name in files(tmp_path / "release") if Path(name).name in (*release.SIGNATURES, "install.sh")]


def test_the_script_is_one_screen_of_clean_shell_with_the_key_in_it(released: Path, signing_key: str) -> None:
    script = released / "install.sh"
    text = script.read_text()
    assert len(text.splitlines()) <= SCREEN_LINES
    assert max(map(len, text.splitlines())) <= SCREEN_COLUMNS
    assert (released / "sparkd.asc").read_text() in text
    assert f"URIs: {URL}\n" in text
    assert signing_key in text
    assert not re.search(r"@[A-Z]+@|curl|wget|\|", text)
    subprocess.run(["shellcheck", script], check=True)


def test_the_script_leaves_the_machine_alone_without_root(released: Path) -> None:
    nobody = () if os.geteuid() else ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    with (released / "install.sh").open() as script:
        done = subprocess.run([*nobody, "sh"], stdin=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "sudo sh install.sh")


@pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces")
def test_the_script_says_what_to_do_where_the_repository_does_not_answer(released: Path) -> None:
    empty = "mount -t tmpfs none /etc/apt && mkdir /etc/apt/sources.list.d && sh install.sh"
    command = ("unshare", "--mount", "--net", "sh", "-c", empty)
    done = subprocess.run(command, cwd=released, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (100, "sudo sh install.sh"), done.stderr
    assert "sudo apt-get install" not in done.stdout


def test_without_a_key_nothing_is_made(tmp_path: Path) -> None:
    for words in ((), ("--key", "throw-away"), ("--url", URL)):
        done = run(*words, "--out", str(tmp_path / "out/release"))
        assert done.returncode == 1
        assert "\nmake release KEY=FINGERPRINT URL=https://HOST/apt\n" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_of_earlier_packages_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run("--unsigned", "--earlier", str(tmp_path / "none"), "--out", str(tmp_path / "out/release"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("release: ") and f"{tmp_path}/none" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_key_that_gpg_does_not_have_is_refused(signing_key: str) -> None:
    assert release.find_key(signing_key) == signing_key
    with pytest.raises(BuildError, match="No secret key"):
        release.find_key("nobody")


def test_a_version_is_released_from_its_tag_unchanged(tmp_path: Path, git: Callable[..., None]) -> None:
    release.check_version(source.read(tmp_path), None)
    with pytest.raises(BuildError, match=r"makes 1\.2\.3~git\S+, not 1\.2\.3:\ngit checkout v1\.2\.3$"):
        release.check_version(source.read(tmp_path), "1.2.3")
    git("tag", "v1.2.3")
    release.check_version(source.read(tmp_path), "1.2.3")
    (tmp_path / "more").touch()
    differ = r"files differ from those of the tag v1\.2\.3:\ngit status$"
    with pytest.raises(BuildError, match=differ):
        release.check_version(source.read(tmp_path), "1.2.3")
    (tmp_path / ".git").rename(tmp_path / "elsewhere")  # as of an archive: nothing says which commit it is
    with pytest.raises(BuildError, match=differ):
        release.check_version(source.read(tmp_path), "1.2.3")


def test_notes_are_the_section_of_the_version() -> None:
    text = (
        "# Changelog\n\n## [Unreleased]\n\n- New.\n\n## [1.2.3] - 2026-12-01\n\n### Added\n\n- Old.\n\n## [1.2.2] - x\n"
    )
    assert changelog.notes(text, "1.2.3") == "### Added\n\n- Old.\n"
    assert changelog.notes(text, "1.2.4~git1") == "- New.\n"
    with pytest.raises(BuildError, match=r"\n## \[1\.2\.4\] - YYYY-MM-DD$"):
        changelog.notes(text, "1.2.4")
