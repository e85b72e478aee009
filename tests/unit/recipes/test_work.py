"""Judging a recipe is bounded work, and commands load no more libraries than they need."""

import gc
import os
import resource
import subprocess
import sys
from pathlib import Path
from time import process_time

import pytest
from tests.unit.clock import unstalled
from tests.unit.commands import sparkd

from sparkd.base.config.settings import Cluster
from sparkd.base.lib.errors import ConfigError
from sparkd.base.recipes.loader import load_recipe, parse_document, read_recipe
from sparkd.base.recipes.schema import Recipe
from sparkd.base.vllm.flag import expand_amounts
from sparkd.tools.node.recipe_lint import lint

MINIMAL_RECIPE = "schema: 1\nname: x\nmodel: {path: M}\nimage: {ref: i:1}\n"
LOOP = "for number in range(10_000_000): str(number)"
"""About 0.5 s of a core of its own, and longer as all does where others work beside it."""
ENV = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
UNUSED = ("asyncio", "cryptography", "httpx", "importlib.metadata", "ssl", "uvicorn")


def cpu_seconds(*words: str) -> tuple[float, str]:
    """Of Python with these arguments, and its errors."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, env=ENV)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stderr


@pytest.fixture(scope="module")
def unit() -> float:
    """CPU seconds of LOOP."""
    sparkd("recipe", "check", "tiny-cpu")  # imports what checks a recipe
    return min(cpu_seconds("-c", LOOP)[0] for _ in range(3))


@pytest.mark.parametrize(
    ("section", "entry"),
    [("args:\n", "  a{}: 1\n"), ("env:\n", "  A{}: 1\n"), ("container:\n", "  a{}: 1\n"), ("", "key{}: 1\n")],
    ids=["flags", "variables", "unknown-keys", "unknown-sections"],
)
def test_60000_keys_are_judged_in_two_seconds(tmp_path: Path, unit: float, section: str, entry: str) -> None:
    seconds = {}
    for number in (6_000, 60_000):
        file = tmp_path / f"{number}.yaml"
        file.write_text(MINIMAL_RECIPE + section + "".join(entry.format(at) for at in range(number)))
        start = process_time()
        assert "no recipe needs" not in sparkd("recipe", "check", str(file)).stderr
        seconds[number] = process_time() - start
    assert seconds[60_000] < 20 * seconds[6_000]
    assert seconds[60_000] < 4 * unit


def test_faults_that_the_agent_logs_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(MINIMAL_RECIPE + "".join(f"key{number}: 1\n" for number in range(200)))
    with pytest.raises(ConfigError) as fault:
        load_recipe(str(file), ())
    assert fault.value.reason.count("there is no such key") == 100


@pytest.mark.parametrize(
    ("section", "entry"),
    [
        ("caches:\n", "  A{0}: /x{0}\n"),
        ("container:\n  devices:\n", "  - /dev/a{}\n"),
        ('args:\n  compilation-config: >-\n    {"', '\\"'),
    ],
    ids=["wrong-values", "missing-files", "quotes-in-an-open-text"],
)
def test_work_grows_with_the_number_of_faults(tmp_path: Path, section: str, entry: str) -> None:
    seconds = []
    for number in (1_000, 8_000):
        file = tmp_path / f"{number}.yaml"
        file.write_text(MINIMAL_RECIPE + section + "".join(entry.format(at) for at in range(number)))
        start = process_time()
        loaded, _ = read_recipe(str(file), ())
        assert loaded
        lint(loaded)
        seconds.append(process_time() - start)
    assert seconds[1] < 20 * seconds[0]


@pytest.mark.parametrize("end", ["", "\\", "\\\n"], ids=["open", "a backslash", "a backslash before a line's end"])
def test_amounts_are_searched_for_once_in_a_text_without_an_end(end: str) -> None:
    text = '"' + '\\"' * 20_000 + end
    start = process_time()
    assert expand_amounts(text) == text
    assert process_time() - start < 1  # from each quote it took 5 s


def test_garbage_is_collected_again_once_a_command_begins() -> None:
    sparkd("recipe", "list")
    assert gc.isenabled()


@pytest.mark.parametrize(
    "words", [("recipe", "list"), ("recipe", "check", "tiny-cpu"), ("init", "--plan")], ids=" ".join
)
def test_short_commands_are_short_and_load_no_library_that_they_do_not_use(unit: float, words: tuple[str, ...]) -> None:
    assert any(cpu_seconds("-m", "sparkd.tools.cli.main", *words)[0] < 0.66 * unit for _ in range(7)), unit
    program = (
        "import sys; from sparkd.tools.cli.main import main; main(sys.argv[1:]); "
        f"print(*sys.modules.keys() & set({UNUSED}), file=sys.stderr)"
    )
    assert cpu_seconds("-c", program, *words)[1].splitlines()[-1] == ""


def test_settings_load_no_asyncio() -> None:
    program = (
        "import sys, sparkd.base.config; left = 'asyncio' in sys.modules; import asyncio; print(left, asyncio.run)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("False <function run")


def test_tens_of_thousands_of_mounts_are_read_in_seconds() -> None:
    """A follower reads its head's document in the main thread. Each was compared with all others: 17 s."""
    volumes = [f"/a{number}:/b{number}:ro" for number in range(30_000)]
    values = {"schema": 1, "name": "x", "model": {"path": "/m"}, "image": {"ref": "i:1"}}
    began = unstalled()
    recipe = Recipe.model_validate({**values, "container": {"volumes": volumes}})
    assert len(recipe.container.volumes) == 30_000
    assert unstalled() - began < 6


def test_tens_of_thousands_of_nodes_are_read_in_seconds() -> None:
    """Likewise, each of the head's nodes was compared with all others: 30,000 took 9 s."""
    began = unstalled()
    assert len(Cluster(nodes=tuple(f"10.0.{number >> 8}.{number & 255}" for number in range(30_000))).nodes) == 30_000
    assert unstalled() - began < 6


def test_yaml_is_parsed_once_until_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    text = "schema: 1\nname: mine\nmodel: {path: M}\nimage: {ref: i:1}\nargs: {max-num-seqs: 4}\n"
    file.write_text(text)
    before = parse_document.cache_info().misses
    assert load_recipe("mine", [tmp_path]) == load_recipe("mine", [tmp_path])
    assert parse_document.cache_info().misses == before + 1
    file.write_text(text.replace("4", "8"))
    assert load_recipe("mine", [tmp_path]).recipe.args == {"max-num-seqs": 8}
