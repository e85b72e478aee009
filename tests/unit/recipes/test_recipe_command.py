"""`sparkd recipe`: list, show, check and schema."""

import json
from pathlib import Path

from tests.unit.commands import sparkd


def test_the_list_begins_each_line_with_a_name() -> None:
    names = {line.split()[0] for line in sparkd("recipe", "list").stdout.splitlines()}
    assert {"deepseek-v4-flash-balanced", "tiny-cpu"} <= names


def test_each_value_is_shown_with_its_line() -> None:
    shown = sparkd("recipe", "show", "tiny-cpu").stdout
    assert 'args.dtype: "float32"' in shown
    assert "config/recipes/tiny-cpu.yaml: line " in shown


def test_the_schema_is_that_of_recipes() -> None:
    assert json.loads(sparkd("recipe", "schema").stdout)["title"] == "sparkd recipe"


def test_each_of_several_recipes_is_checked(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("schema: 1\nname: x\nagrs: {}\n")
    done = sparkd("recipe", "check", str(tmp_path / "x.yaml"), "tiny-cpu")
    assert done.returncode == 78
    assert "tiny-cpu is good" in done.stdout
    assert "line 3: agrs: there is no such key; did you mean args?" in done.stderr
