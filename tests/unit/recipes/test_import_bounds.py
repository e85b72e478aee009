"""Texts that grow by themselves, or are long, end in seconds."""

import time
from pathlib import Path

import pytest
from tests.unit.clock import unstalled
from tests.unit.started_engines import COMPOSE, IMAGE, LINE, UNIT, imported

from sparkd.base.lib.errors import ConfigError
from sparkd.tools.cli import main
from sparkd.tools.importers.forms import read_form


@pytest.mark.parametrize(
    "text",
    [
        "A=(x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40,
        "A=()\n" + "A+=(x)\n" * 20_000,
        "".join(f"export A{n}=1\n" for n in range(2000)) + "x\n" * 10_000,
        "(" * 100_000,
    ],
)
def test_lists_and_exports_that_grow_end(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too long once it is filled in"):
        imported(tmp_path, f"{text}{LINE}\n")


def test_the_recognition_of_a_long_text_ends(tmp_path: Path) -> None:
    started = unstalled()
    assert read_form("vllm." * 20_000, tmp_path / "given", {}, owner=None) is None
    assert unstalled() - started < 5  # many times as long, where each place is read to the end


def import_within_seconds(path: Path) -> None:
    started = time.process_time()
    assert main.main(["recipe", "import", str(path)]) in (0, 10, 78)
    assert time.process_time() - started < 2.5  # many times as long, where each place is read to the end


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("unit", f"{UNIT}ExecStartPre={'docker ' * 50_000}\nExecStart={LINE}\n"),
        ("assigned", f"{'A=1 ' * 125_000}\n{LINE}\n"),
        ("env", f"{'env ' * 125_000}\n{LINE}\n"),
        ("marks", f"model: o/m\ncontainer: r/i:1\ncommand: vllm serve o/m {chr(0xFDD0) * 45_000}\n"),
        ("nested", f"X={'${A:-$(' * 30_000}{')}' * 30_000}\n{LINE}\n"),
        ("hub", f"{LINE} --speculative-config.model /x/hub/models--xx{'--x' * 30_000}\n"),
        ("script", f"docker run {' '.join(f'${{A{n}[@]}}' for n in range(20_000))} {IMAGE} --model org/m\n"),
    ],
)
def test_a_large_file_takes_seconds(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    import_within_seconds(tmp_path / name)


def test_a_file_beside_a_large_one_takes_seconds(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"A=x{' ' * 100_000}y")
    (tmp_path / "given").write_text(COMPOSE)
    import_within_seconds(tmp_path / "given")
