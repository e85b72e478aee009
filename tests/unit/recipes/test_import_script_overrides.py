"""What a script decides only as it runs: -o NAME=VALUE gives it to the import."""

from pathlib import Path

import pytest
from tests.unit.started_engines import IMAGE, LINE, UNIT, imported

from sparkd.base.lib.errors import ConfigError

DECIDED: dict[str, tuple[str, dict[str, str], dict[str, object]]] = {
    "a variable that if sets": (f"if x; then M=a/b; fi\ndocker run {IMAGE} --model $M", {"M": "org/m"}, {}),
    "a variable as the command": (
        f"if x; then D=docker; fi\n$D run {IMAGE} --model org/m",
        {"D": "sudo docker"},
        {},
    ),
    "an argument of the script": (f"docker run {IMAGE} --model $1", {"1": "org/m"}, {}),
    "a placeholder": (f"docker run {IMAGE} <your-model> --seed 1", {"your-model": "org/m"}, {"seed": 1}),
    "an array that if lengthens": (
        f'if x; then A+=(y); fi\ndocker run {IMAGE} "${{A[@]}}" --seed 1',
        {"A": "org/m"},
        {"seed": 1},
    ),
    "a variable of a container's bash": (f"docker run {IMAGE} bash -c 'vllm serve $M'", {"M": "org/m"}, {}),
    "an array that read sets": (
        'read -ra A <<<"$X"\nvllm serve "${A[@]}"',
        {"A": "org/m --seed 1"},
        {"seed": 1},
    ),
    "the end of an array, from where it is not sure": (
        f'A=(--seed 1)\ntest -f x && A+=(--port 2)\nA+=(--dtype auto)\n{LINE} "${{A[@]}}"',
        {"A": "--port 3 --dtype half"},
        {"seed": 1, "port": 3, "dtype": "half"},
    ),
    "docker's options amid an array": (
        f'A=(run)\ntest -f x && A+=(-p 1:1)\nA+=({IMAGE} --model org/m)\ndocker "${{A[@]}}"',
        {"A": "-p 9:8000"},
        {"port": 9},
    ),
    "a variable behind runuser": (
        "sudo runuser -u v -- vllm serve $M -cc 1\n",
        {"M": "org/m"},
        {"compilation-config": 1},
    ),
    "a variable of bash -c": ("bash -c 'vllm serve $M'\n", {"M": "org/m"}, {}),
    "a variable that a unit sets": (
        f"{UNIT}Environment=M=org/other\nExecStart=/usr/bin/docker run {IMAGE} --model ${{M}}\n",
        {"M": "org/m"},
        {},
    ),
}


@pytest.mark.parametrize(("text", "overrides", "args"), DECIDED.values(), ids=DECIDED)
def test_an_override_decides_what_a_script_decides_otherwise(
    tmp_path: Path, text: str, overrides: dict[str, str], args: dict[str, object]
) -> None:
    recipe = imported(tmp_path, text, image=IMAGE, **overrides).recipe
    assert recipe.model.repo == "org/m"
    assert recipe.args == args


@pytest.mark.parametrize(("word", "name"), [("<your-model>", "your-model"), ('"${A[@]}"', "A")])
def test_a_refusal_names_the_override_that_would_help(tmp_path: Path, word: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"not known: write its value, or give -o {name}=VALUE"):
        imported(tmp_path, f"if x; then A+=(y); fi\ndocker run {IMAGE} {word}")


def test_an_override_that_fills_nothing_in_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"-o N: nothing in .* is filled in by that name"):
        imported(tmp_path, LINE, N="org/m")
