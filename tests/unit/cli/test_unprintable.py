"""Texts of recipes and names of files with letters that a terminal obeys: a command prints none of them."""

from pathlib import Path

import pytest
from tests.unit.commands import sparkd

HOSTILE = """\
schema: 1
name: hostile
model: {path: "m"}
image: {ref: "i:1"}
args: {max-model-len: 100}
env: {A: "\\e[2Kx", B: "\\u009b2Ky"}
"""


@pytest.mark.parametrize("command", ["plan", "recipe check", "recipe show"])
def test_what_a_recipe_holds_never_moves_the_cursor(tmp_path: Path, command: str) -> None:
    (tmp_path / "sparkd.toml").write_text(f'[engine]\nrecipe = "{tmp_path}/hostile.yaml"\n')
    (tmp_path / "hostile.yaml").write_text(HOSTILE)
    words = command.split() + ([] if command == "plan" else [f"{tmp_path}/hostile.yaml"])
    done = sparkd(*words, config=tmp_path / "sparkd.toml")
    assert done.stdout
    assert not {"\x1b", "\x9b"} & {*done.stdout, *done.stderr}


def test_the_name_of_a_file_never_moves_the_cursor(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2K.yaml").symlink_to("/none")
    done = sparkd("recipe", "import", str(tmp_path))
    assert ".yaml: is a link to a file that does not exist" in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("letter", ["\x1b", "\x9b", "\u202e"])
def test_a_path_in_a_recipe_has_no_letter_that_a_terminal_obeys(tmp_path: Path, letter: str) -> None:
    (tmp_path / "q.yaml").write_text(HOSTILE.replace('"m"', f'"/m{letter.encode("unicode_escape").decode()}"'))
    done = sparkd("recipe", "check", f"{tmp_path}/q.yaml")
    assert done.returncode == 78
    assert "nothing unprintable" in done.stderr
