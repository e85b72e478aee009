"""The unpacked package runs with every CPython that it is for, as far as this machine has them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.hub_server import REPO, Hub, serving

from deb.targets import PYTHONS
from sparkd import __version__
from sparkd.base.lib import recipes_dir

IMPORTS = (
    "docker, httpx, huggingface_hub, msgspec, prometheus_client, psutil, pydantic_settings, pynvml, rich, "
    "sdnotify, structlog, tomlkit, uvicorn, yaml._yaml"
)


def interpreters() -> list[str]:
    """CPythons of this machine in the supported versions; those of the nodes are tested in the bed."""
    places = ["/usr/bin", *os.environ["PATH"].split(":")]
    managed = sorted(Path.home().glob(".pyenv/versions/*/bin"))
    paths: dict[str, str] = {}
    for folder in (*map(str, managed), *places):
        for version in PYTHONS:
            path = shutil.which(f"python{version}", path=folder)
            if path and "shims" not in path:
                paths.setdefault(version, path)
    return [paths[version] for version in sorted(paths)]


def run(unpacked: Path, interpreter: str, code: str) -> subprocess.CompletedProcess[str]:
    """As the launcher does, from where the package lies."""
    paths = [str(unpacked / "usr/lib/sparkd" / folder) for folder in ("app", "vendor")]
    started = f"import sys\nsys.path[:0] = {paths!r}\n{code}"
    return subprocess.run([interpreter, "-IBS", "-c", started], capture_output=True, text=True, check=False)


def test_there_is_an_interpreter_to_test_with() -> None:
    assert interpreters()


@pytest.mark.parametrize("interpreter", interpreters())
def test_version_is_said(unpacked: Path, interpreter: str) -> None:
    done = run(unpacked, interpreter, "from sparkd.tools.cli.main import main\nraise SystemExit(main(['--version']))")
    assert (done.returncode, done.stdout) == (0, f"sparkd {__version__}\n"), done.stderr


@pytest.mark.parametrize("interpreter", interpreters())
def test_the_template_of_the_page_is_there(unpacked: Path, interpreter: str) -> None:
    done = run(unpacked, interpreter, "from sparkd.agent.status.page import read_template as r; print(*r())")
    assert "</html>" in done.stdout, done.stderr


@pytest.mark.parametrize("interpreter", interpreters())
def test_libraries_import_from_the_package_alone(unpacked: Path, interpreter: str) -> None:
    code = (
        f"import {IMPORTS}\n"
        "from sparkd.base.config import Settings\nSettings()\n"
        "own = sys.path[:2]\n"
        "six = (docker, httpx, psutil, pydantic_settings, sdnotify, structlog)\n"
        "print(all(module.__file__.startswith(own[1]) for module in six))"
    )
    done = run(unpacked, interpreter, code)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@pytest.mark.parametrize("interpreter", interpreters())
def test_the_hubs_client_downloads_with_what_the_package_carries(
    unpacked: Path, interpreter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = Tree(tmp_path / "source").safetensors("/model.safetensors").read_bytes()
    (tmp_path / "none.toml").touch()
    words = ["model", "pull", REPO, "--to", str(tmp_path / "model")]
    with serving(Hub({"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": shard})) as hub:
        for name, value in (("HF_ENDPOINT", hub.endpoint), ("SPARKD_CONFIG", str(tmp_path / "none.toml"))):
            monkeypatch.setenv(name, value)
        done = run(unpacked, interpreter, f"from sparkd.tools.cli.main import main\nraise SystemExit(main({words!r}))")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "model/model.safetensors").read_bytes() == shard


JOIN = """
from sparkd.tools.setup.join import Invitation
from sparkd.tools.setup.join_request import fetch_keys
with Invitation("127.0.0.2", (), (bytes(32),), 1, head_keys=(bytes(32),), port=0) as invitation:
    print(fetch_keys(invitation.code, port=invitation.port).nodes)
"""


@pytest.mark.parametrize("interpreter", interpreters())
def test_a_node_joins_with_what_the_package_carries(unpacked: Path, interpreter: str) -> None:
    done = run(unpacked, interpreter, JOIN)
    assert (done.returncode, done.stdout, done.stderr) == (0, "('127.0.0.2', '127.0.0.1')\n", "")


DEMO = """
import os, time
os.environ.clear()
from sparkd.tools.cli.main import main
assert main(["demo"]) == 0
print(f"{time.process_time():.1f} s")
"""
DEMO_SECONDS = 5.0
"""Of a processor, without the byte code that an installation makes."""


@pytest.mark.parametrize("interpreter", interpreters())
def test_the_demo_needs_the_package_alone_and_five_seconds(unpacked: Path, interpreter: str) -> None:
    done = run(unpacked, interpreter, DEMO)
    assert (done.returncode, done.stderr) == (0, "")
    assert "BLOCK   unified-memory" in done.stdout
    assert float(done.stdout.split()[-2]) < DEMO_SECONDS


def test_launcher_looks_where_the_package_lies(unpacked: Path) -> None:
    text = (unpacked / "usr/bin/sparkd").read_text()
    assert text.startswith("#!/usr/bin/python3 -IBS\n")
    for folder in ("/usr/lib/sparkd/app", "/usr/lib/sparkd/vendor"):
        assert folder in text
        assert (unpacked / folder[1:]).is_dir()


@pytest.mark.parametrize("interpreter", interpreters())
def test_recipes_and_units_are_read_from_usr_share(unpacked: Path, interpreter: str) -> None:
    code = "from sparkd.base.lib import recipes_dir, units_dir\nprint(recipes_dir(), units_dir())"
    shared = unpacked / "usr/share/sparkd"
    assert run(unpacked, interpreter, code).stdout.split() == [f"{shared}/recipes", f"{shared}/units"]
    assert {file.name for file in (shared / "recipes").iterdir()} == {file.name for file in recipes_dir().iterdir()}
