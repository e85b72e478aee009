"""The wheel: `pip install .` gives a program that has its recipes and units."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.tree import Tree

from sparkd.base.config import units
from sparkd.base.lib import recipes_dir

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a new virtual environment with the wheel; libraries are those of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    quiet = ("-q", "--disable-pip-version-check", "--no-deps")
    subprocess.run([sys.executable, "-m", "pip", "wheel", *quiet, "-w", folder, CHECKOUT], check=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    (wheel,) = folder.glob("sparkd_agent-*.whl")
    subprocess.run([folder / "venv/bin/pip", "install", *quiet, wheel], check=True)
    # A line of a .pth file only adds a folder: this environment's own .pth files, and so the checkout, stay outside.
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "venv/bin"


def sparkd(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "SPARKD_CONFIG": str(installed / "no.toml")}
    (installed / "no.toml").touch()
    return subprocess.run([installed / "sparkd", *words], env=environment, capture_output=True, text=True, check=False)


def test_a_wheel_brings_its_own_program_and_every_recipe(installed: Path) -> None:
    where = [str(installed / "python"), "-I", "-c", "import sparkd; print(sparkd.__file__)"]
    assert subprocess.run(where, capture_output=True, text=True, check=True).stdout.startswith(str(installed.parent))
    listed = sparkd(installed, "recipe", "list").stdout.splitlines()
    assert [line.split()[0] for line in listed[1:]] == sorted(path.stem for path in recipes_dir().iterdir())
    assert not [line for line in listed if "broken" in line]


def test_a_wheel_has_all_data_of_the_source(installed: Path) -> None:
    source = CHECKOUT / "src/sparkd/data"
    (shipped,) = installed.parent.glob("lib/python*/site-packages/sparkd/data")
    files = [file for path in source.iterdir() for file in (path.iterdir() if path.is_dir() else [path])]
    assert {"vllm-flags.json", "sparkd-checks.7.md", "tiny-cpu.yaml", "sparkd.service.in"} <= {
        file.name for file in files
    }
    for file in files:
        assert (shipped / file.relative_to(source)).read_bytes() == file.read_bytes()


def test_a_wheel_renders_the_units_of_this_source(installed: Path) -> None:
    done = sparkd(installed, "units", "render", "--role", "head")
    assert units.render("head") in done.stdout, done.stderr


def test_a_wheel_has_the_template_of_the_page(installed: Path) -> None:
    read = [
        str(installed / "python"),
        "-I",
        "-c",
        "from sparkd.agent.status.page import read_template as r; print(*r())",
    ]
    assert "</html>" in subprocess.run(read, capture_output=True, text=True, check=True).stdout


def test_a_wheel_examines_a_node(installed: Path, tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.meminfo(MemTotal=120, MemFree=110, MemAvailable=110)
    done = sparkd(installed, "preflight", "--dry-run", "--json", "--root", str(tree.root))
    assert "page-cache" in {one["id"] for one in json.loads(done.stdout)["checks"]}, done.stderr
