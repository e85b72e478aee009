"""The maintainer scripts by this machine's shell, on a folder in place of /. `tests/bed/test_package.py` has dpkg."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "packaging/debian"


class Machine:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bin").mkdir()
        self.program("bin/deb-systemd-helper", "exit 0")

    def program(self, path: str, text: str) -> None:
        program = self.root / path
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)

    def file(self, path: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        return file

    def run(self, script: str, action: str, before: str = "") -> str:
        """The lines that a person sees. `before`: a command in the script's own mount namespace."""
        text = re.sub(r"(?<![\w.}])/(?=(?:etc|run|usr|var)/)", f"{self.root}/", (SCRIPTS / script).read_text())
        env = {"PATH": f"{self.root}/bin:/usr/bin:/bin"}
        apart = ("unshare", "--mount", "sh", "-ec", f'{before}; exec "$@"', "sh") if before else ()
        command = [*apart, "sh", "-c", text, script, action]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        assert not done.stderr
        return done.stdout.replace(f"{self.root}/", "/")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    "path", ["models/name/model.safetensors", "my models/x/y.gguf", "hub/models--a/snapshots/1/pytorch_model.bin"]
)
def test_a_purge_keeps_models_beside_the_state(machine: Machine, path: str) -> None:
    weights, folder = machine.file(f"var/lib/sparkd/{path}"), path.partition("/")[0]
    others = [machine.file(f"var/lib/sparkd/{name}") for name in ("known-good.json", ".x/y", "cache/a/kernel.bin")]
    settings = machine.file("etc/sparkd/sparkd.toml")
    assert machine.run("postrm", "purge") == f"kept, since it has a model: /var/lib/sparkd/{folder}\n"
    assert [file.exists() for file in (weights, *others, settings)] == [True, False, False, False, False]
    weights.unlink()
    assert machine.run("postrm", "purge") == ""
    assert not (machine.root / "var/lib/sparkd").exists()


@pytest.mark.parametrize("name", ["consolidated.00.pth", "model.bin", "model-00001-of-00002.pt"])
def test_a_purge_keeps_weights_of_each_name_that_sparkd_serves(machine: Machine, name: str) -> None:
    weights = machine.file(f"var/lib/sparkd/models/x/{name}")
    os.truncate(weights, (64 << 20) + 1)
    machine.run("postrm", "purge")
    assert weights.exists()


def test_a_purge_leaves_nothing_else(machine: Machine) -> None:
    machine.file("var/lib/sparkd/cache/x")
    machine.file("var/lib/sparkd/..x")
    machine.file("etc/sparkd/conf.d/x.toml")
    machine.run("postrm", "purge")
    assert not (machine.root / "var/lib/sparkd").exists()
    assert not (machine.root / "etc/sparkd").exists()


def test_a_purge_follows_no_link_of_the_administrators(machine: Machine) -> None:
    theirs = machine.file("data/theirs")
    machine.file("var/lib/x")
    (machine.root / "var/lib/sparkd").symlink_to(theirs.parent)
    machine.run("postrm", "purge")
    assert theirs.exists()
    assert not (machine.root / "var/lib/sparkd").is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
@pytest.mark.parametrize(("below", "lib"), [("cache", ""), ("cache/x/a file\\.bin", ""), ("cache/x", "large disk")])
def test_a_purge_keeps_what_the_administrator_mounted_of_the_same_file_system(
    machine: Machine, below: str, lib: str
) -> None:
    if lib:  # /var/lib is a link to it
        (machine.root / "var").mkdir()
        (machine.root / lib).mkdir()
        (machine.root / "var/lib").symlink_to(machine.root / lib)
    theirs, own = machine.file("data/theirs"), machine.file("var/lib/sparkd/known-good.json")
    there = machine.file(f"var/lib/sparkd/{below}/x").parent
    mount = f"mount --bind {theirs.parent} {shlex.quote(str(there))}"
    message = "kept, since something is mounted in it (findmnt shows what): /var/lib/sparkd/cache\n"
    assert machine.run("postrm", "purge", mount) == message
    assert (theirs.exists(), there.exists(), own.exists()) == (True, True, False)


def test_a_full_run_holds_up_no_removal(machine: Machine) -> None:
    (machine.root / "run/systemd/system").mkdir(parents=True)
    (machine.root / "run/sparkd.stopped").symlink_to("/dev/full")
    machine.program("bin/systemctl", "echo sparkd-head.service loaded active running an agent")
    machine.program("bin/deb-systemd-invoke", f'echo "$1" >>{machine.root}/done')
    machine.program("usr/bin/sparkd", "exit 0")
    assert machine.run("prerm", "remove") == ""
    assert (machine.root / "done").read_text() == "stop\n"


def test_a_removal_says_that_a_container_may_run_on(machine: Machine) -> None:
    machine.program("usr/bin/sparkd", "exit 11")
    assert machine.run("prerm", "remove").splitlines()[-1] == "sudo docker ps --filter label=io.sparkd.role"
    machine.program("usr/bin/sparkd", "exit 0")
    assert machine.run("prerm", "remove") == ""
