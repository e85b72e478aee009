"""What is in the package: everything it needs, for every system it is for, and nothing that prompts or leaks."""

import gzip
import io
import json
import re
import shutil
import struct
import subprocess
import tarfile
from pathlib import Path, PurePosixPath

import pytest

import completions
from deb import lock
from deb.targets import ARCHITECTURES, PYTHONS
from sparkd.base.config import units
from sparkd.tools.cli.main import COMMANDS

CHECKOUT = Path(__file__).parents[2]
ELF_MACHINE = {"amd64": 62, "arm64": 183}
DEBIANS = [architecture.debian for architecture in ARCHITECTURES]
UNITS = [Path(path).name for path in units.package_units() if not path.endswith(".conf")]
VENDOR = "./usr/lib/sparkd/vendor"
PAGES = sorted(path.name.removesuffix(".md") for path in (CHECKOUT / "docs").rglob("*.[1-9].md"))


def tarball(deb: Path, which: str) -> tarfile.TarFile:
    packed = subprocess.run(["dpkg-deb", f"--{which}-tarfile", str(deb)], capture_output=True, check=True).stdout
    return tarfile.open(fileobj=io.BytesIO(packed))


def content(archive: tarfile.TarFile, path: str) -> bytes:
    stream = archive.extractfile(path)
    assert stream is not None, path
    return stream.read()


def field(deb: Path, name: str) -> str:
    return subprocess.run(["dpkg-deb", "-f", str(deb), name], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("debian", DEBIANS)
def test_compiled_modules_are_there_for_every_python_and_of_the_right_machine(
    packages: dict[str, Path], debian: str
) -> None:
    archive = tarball(packages[debian], "fsys")
    modules = [name for name in archive.getnames() if name.endswith(".so")]
    tags: dict[str, list[str]] = {}
    for name in modules:
        if match := re.search(r"/vendor/([^/.]+).*\.cpython-(\d+)-", name):
            tags.setdefault(match[1], []).append(match[2])
    every = [python.replace(".", "") for python in PYTHONS]
    compiled = ("_cffi_backend", "msgspec", "pydantic_core", "yaml")
    assert {library: sorted(versions) for library, versions in tags.items()} == dict.fromkeys(compiled, every)
    assert sorted(name.partition("/vendor/")[2] for name in modules if ".abi3." in name) == [
        "cryptography/hazmat/bindings/_rust.abi3.so",
        "psutil/_psutil_linux.abi3.so",
    ]
    programs = [member for member in archive if "/vendor/bin/" in member.name and member.isreg()]
    assert [(program.name.partition("/vendor/")[2], program.mode) for program in programs] == [("bin/py-spy", 0o755)]
    for name in (*modules, *(program.name for program in programs)):
        assert struct.unpack_from("<H", content(archive, name), 18)[0] == ELF_MACHINE[debian]


@pytest.mark.parametrize("debian", DEBIANS)
def test_no_file_in_etc_so_that_no_upgrade_ever_prompts(packages: dict[str, Path], debian: str) -> None:
    assert "./conffiles" not in tarball(packages[debian], "ctrl").getnames()
    members = tarball(packages[debian], "fsys")
    assert [member.name for member in members if member.name.startswith("./etc/") and not member.isdir()] == []


@pytest.mark.parametrize("debian", DEBIANS)
def test_files_belong_to_root_and_nobody_else_may_write_them(packages: dict[str, Path], debian: str) -> None:
    for member in tarball(packages[debian], "fsys"):
        assert (member.uid, member.gid) == (0, 0), member.name
        assert member.issym() or member.mode & 0o7022 == 0, member.name


@pytest.mark.parametrize("debian", DEBIANS)
def test_docker_is_suggested_and_python_is_bounded(packages: dict[str, Path], debian: str) -> None:
    assert field(packages[debian], "Architecture") == debian
    assert "docker" in field(packages[debian], "Suggests")
    assert "docker" not in field(packages[debian], "Depends") + field(packages[debian], "Recommends")
    assert "python3 (>= 3.11), python3 (<< 3.15)" in field(packages[debian], "Depends")


def test_libraries_are_those_of_the_lock_and_none_that_only_tests_need(packages: dict[str, Path]) -> None:
    pins = {pin.name: pin.version for pin in lock.read((CHECKOUT / "requirements.lock").read_text()).pins}
    carried = []
    for debian in DEBIANS:
        document = json.loads(content(tarball(packages[debian], "fsys"), "./usr/share/doc/sparkd/sbom/sparkd.cdx.json"))
        carried.append({component["name"]: component["version"] for component in document["components"]})
    assert carried[0] == carried[1]
    assert carried[0].items() <= pins.items()
    assert {"docker", "httpx", "psutil", "pydantic-settings", "sdnotify", "structlog"} <= set(carried[0])
    assert not {"pytest", "mypy", "ruff", "hypothesis"} & set(carried[0])


def test_every_library_has_its_paragraph_of_copyright(package: Path) -> None:
    archive = tarball(package, "fsys")
    text = content(archive, "./usr/share/doc/sparkd/copyright").decode()
    tops = {
        PurePosixPath(name).relative_to(VENDOR).parts[0] for name in archive.getnames() if name.startswith(f"{VENDOR}/")
    }
    assert len(tops) > 20
    assert "example.py" not in tops, "a module that nothing imports"
    assert [top for top in sorted(tops) if f"usr/lib/sparkd/vendor/{top}" not in text] == []
    named = set(re.findall(r"^License: (\S+)$", text, re.MULTILINE))
    assert "Apache-2.0" in named


def test_units_are_the_ones_that_this_source_renders(unpacked: Path) -> None:
    for path, text in units.package_units().items():
        assert (unpacked / path[1:]).read_text() == text


def verify(root: Path) -> str:
    """What systemd-analyze of this machine has to say about the units below `root`."""
    command = ["systemd-analyze", "verify", f"--root={root}", *UNITS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"{done.stdout}{done.stderr}exit {done.returncode}"


def test_units_verify_clean(unpacked: Path, tmp_path: Path) -> None:
    system = tmp_path / units.PACKAGE_UNITS[1:]
    shutil.copytree(units.PACKAGE_UNITS, system, symlinks=True)
    shutil.copytree(unpacked / "usr", tmp_path / "usr", dirs_exist_ok=True)
    (tmp_path / "bin").mkdir()
    shutil.copy("/bin/sh", tmp_path / "bin/sh")  # which a unit runs, as another does python3, of a package of its own
    shutil.copy("/bin/sh", tmp_path / "usr/bin/python3")
    assert verify(tmp_path) == "exit 0"
    head = system / "sparkd-head.service"
    head.write_text(head.read_text().replace("KillMode=mixed", "KillMode=maybe"))
    assert "Failed to parse kill mode specification, ignoring: maybe" in verify(tmp_path)


def test_md5sums_hold(unpacked: Path) -> None:
    done = subprocess.run(
        ["md5sum", "--check", "--quiet", "--strict", "DEBIAN/md5sums"],
        cwd=unpacked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", ["postinst", "prerm", "postrm"])
def test_scripts_are_shell_that_stops_at_the_first_failure(unpacked: Path, script: str) -> None:
    path = unpacked / "DEBIAN" / script
    assert path.read_text().startswith("#!/bin/sh\n")
    assert "\nset -e\n" in path.read_text()
    assert subprocess.run(["dash", "-n", str(path)], check=False).returncode == 0


def test_manual_pages_name_the_program_and_this_version(unpacked: Path, package: Path) -> None:
    roff = gzip.decompress((unpacked / "usr/share/man/man8/sparkd.8.gz").read_bytes()).decode()
    assert '.TH "sparkd" "8"' in roff
    assert field(package, "Version").partition("~")[0] in roff


def test_each_command_has_a_manual_page(unpacked: Path) -> None:
    pages = {path.name for path in (unpacked / "usr/share/man/man8").iterdir()}
    assert pages == {"sparkd.8.gz", *(f"sparkd-{name}.8.gz" for name, *_ in COMMANDS)}


@pytest.mark.parametrize("name", PAGES)
def test_manual_pages_render_within_80_columns_without_a_warning_and_are_found_by_name(
    unpacked: Path, name: str, tmp_path: Path
) -> None:
    page = unpacked / f"usr/share/man/man{name[-1]}/{name}.gz"
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "80"}
    shown = subprocess.run(
        ["man", "--warnings=w", "--local-file", str(page)], capture_output=True, text=True, check=True, env=env
    )
    assert shown.stderr == ""
    lines = shown.stdout.splitlines()
    assert len(lines) > 15
    assert [line for line in lines if len(line) > 80] == []
    (tmp_path / name).write_bytes(gzip.decompress(page.read_bytes()))
    listed = subprocess.run(["lexgrog", str(tmp_path / name)], capture_output=True, text=True, check=True).stdout
    assert f'"{name[:-2]} - ' in listed


@pytest.mark.parametrize("name", PAGES)
def test_manual_pages_keep_the_underscores_of_names(unpacked: Path, name: str) -> None:
    roff = gzip.decompress((unpacked / f"usr/share/man/man{name[-1]}/{name}.gz").read_bytes()).decode()
    (page,) = (CHECKOUT / "docs").rglob(f"{name}.md")
    names = re.findall(r"[^\W_]+(?:_[^\W_]+)+", page.read_text().replace("\\_", "_"))
    assert [word for word in names if word not in roff.replace("\\_", "_")] == []


@pytest.mark.parametrize("path", completions.FILES.values())
def test_completions_are_where_each_shell_looks(unpacked: Path, path: str) -> None:
    assert "sparkd" in (unpacked / path).read_text()


def test_needrestart_only_names_the_units(unpacked: Path) -> None:
    shipped = unpacked / "usr/share/sparkd/needrestart.conf"
    # As needrestart reads it: each pattern decides whether the unit may be restarted.
    program = (
        "our %nrconf; do $ARGV[0]; die $@ if $@;"
        "for my $unit (@ARGV[1..$#ARGV]) { my ($hit) = grep { $unit =~ /$_/ } keys %{$nrconf{override_rc}};"
        'print defined $hit ? $nrconf{override_rc}->{$hit} : "restarted", "\\n" }'
    )
    names = ["sparkd-head.service", "sparkd-worker.service", "other.service"]
    done = subprocess.run(["perl", "-e", program, str(shipped), *names], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["0", "0", "restarted"], done.stderr


def test_the_first_boot_of_an_image_enables_no_unit(unpacked: Path) -> None:
    systemctl = ("systemctl", f"--root={unpacked}")
    subprocess.run([*systemctl, "preset-all", "--preset-mode=enable-only"], capture_output=True, check=True)
    enabled = subprocess.run([*systemctl, "is-enabled", *UNITS], capture_output=True, text=True, check=False)
    assert enabled.stdout.split() == ["disabled", "disabled", *["static"] * (len(UNITS) - 2)], enabled.stderr


def test_all_data_of_the_source_are_where_the_program_reads_them(unpacked: Path) -> None:
    source = CHECKOUT / "src/sparkd/data"
    files = [file for path in source.iterdir() for file in (path.iterdir() if path.is_dir() else [path])]
    assert {"vllm-flags.json", "sparkd-checks.7.md", "tiny-cpu.yaml", "sparkd.service.in"} <= {
        file.name for file in files
    }
    for file in files:
        assert (unpacked / "usr/share/sparkd" / file.relative_to(source)).read_bytes() == file.read_bytes()
    assert (unpacked / "usr/lib/sparkd/app/sparkd/data").resolve() == (unpacked / "usr/share/sparkd").resolve()


def test_what_prometheus_and_grafana_read_is_where_the_manual_has_it(unpacked: Path) -> None:
    files = {file.name: file.read_bytes() for file in (CHECKOUT / "config/grafana").iterdir()}
    assert {"alerts.yaml", "dashboards.yaml", "datasource.yaml", "prometheus.yml", "sparkd.json"} == set(files)
    assert {file.name: file.read_bytes() for file in (unpacked / "usr/share/sparkd/grafana").iterdir()} == files
    manual = (unpacked / "usr/share/doc/sparkd/monitoring.md").read_text()
    assert all(f"`{name}`" in manual for name in files)
