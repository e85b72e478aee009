"""What an import leaves out of a script, and notes: flags without a value that is known, and what is not run."""

import re
import shlex
from pathlib import Path

import pytest
from tests.unit.started_engines import COMPOSE, IMAGE, LINE, UNIT, imported

LEFT_OUT = {
    "a command's output": (
        f"{LINE} --block-size 16 --seed $(id -u)",
        r"line 1: --seed: left out: what \$\(id -u\) stands for",
    ),
    "a command's output by backquotes": (
        f"{LINE} --seed `id` --block-size 16",
        "line 1: --seed: left out: what `id` stands for",
    ),
    "a variable that if sets": (
        f"if x; then S=1; fi\n{LINE} --block-size 16 --seed=$S",
        r"line 2: --seed: .* in \$\{S\} is .* -o S=VALUE",
    ),
    "an argument of the script": (
        f"{LINE} --seed $1 --block-size 16",
        r"line 1: --seed: left out: what \$1 stands for",
    ),
    "words of a variable": (f"{LINE} --block-size 16 $MORE", r"line 1: left out: what \$MORE stands for"),
    "words of a command's output": (
        f"{LINE} $(cat more) --block-size 16",
        r"line 1: left out: what \$\(cat more\) stands for",
    ),
    "words behind vllm serve": (
        f"docker run {IMAGE} vllm serve org/m $MORE --block-size 16",
        r"line 1: left out: what \$MORE stands for",
    ),
    "a variable of bash -c": (
        f'docker run {IMAGE} bash -c "vllm serve org/m --block-size 16 --seed $S"',
        r"line 1: --seed: left out: what \$S stands for in \$S is not known: write its value, or give -o S=VALUE",
    ),
    "alternatives in braces": (
        f"{LINE} --seed {{a,b}} --block-size 16",
        "line 1: --seed: left out: what {a,b} stands for",
    ),
    "a placeholder": (f"{LINE} --block-size 16 --seed <n>", "line 1: --seed: left out: what <n> stands for"),
    "an array that if lengthens": (
        f"F=(--block-size 16)\nif x; then F+=(--seed 1); fi\n{LINE} ${{F[@]}}",
        r"line 3: left out: what \$\{F\[@\]\} stands for",
    ),
    "an array among docker's options": (
        f"docker run --gpus all ${{G[@]}} {IMAGE} --model org/m --block-size 16",
        r"line 1: left out: what \$\{G\[@\]\} stands for is not known: write it",
    ),
    "a unit's specifier": (
        f"{UNIT}ExecStart=/usr/bin/{LINE} --block-size 16 --seed %i\n",
        "line 4: --seed: left out: what %i stands for",
    ),
    "a compose file's variable": (
        COMPOSE.replace("org/m", "org/m --block-size 16 --seed ${S}"),
        r"line 4: --seed: .* -o S=VALUE",
    ),
}


@pytest.mark.parametrize(("text", "reason"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_flag_with_a_value_that_is_not_known_is_missing_and_the_rest_taken(
    text: str, reason: str, tmp_path: Path
) -> None:
    result = imported(tmp_path, text)
    assert result.recipe.args == {"block-size": 16}
    (line,) = result.missing
    assert re.search(reason, line)


def test_words_behind_a_switch_are_not_its_value(tmp_path: Path) -> None:
    result = imported(tmp_path, f"{LINE} --trust-remote-code $MORE")
    assert result.recipe.args == {"trust-remote-code": True}
    (line,) = result.missing
    assert "left out: what $MORE" in line


@pytest.mark.parametrize("text", ["it's", "A=(b", '"$(x'])
def test_an_eval_without_an_end_is_noted_and_a_model_may_have_an_apostrophe(tmp_path: Path, text: str) -> None:
    notes = imported(tmp_path, f"eval {shlex.quote(text)} -y\ndocker run {IMAGE} --model /m/Jan\u2019s/m").notes
    assert notes[0] == f"line 1: eval {text} -y: not read: give what it sets by -o NAME=VALUE"


def test_what_an_eval_sets_is_not_known(tmp_path: Path) -> None:
    (lost,) = imported(tmp_path, f"S=1\neval S=2\n{LINE} --seed $S").missing
    assert (
        lost
        == "line 3: --seed: left out: what ${S} stands for in ${S} is not known: write its value, or give -o S=VALUE"
    )
    result = imported(tmp_path, f'S=1\neval "$(cat x.env)"\n{LINE} --seed $S')
    assert result.notes == ["line 2: eval $(cat x.env): not read: give what it sets by -o NAME=VALUE"]


@pytest.mark.parametrize("start", [LINE, "vllm serve org/m"])
def test_flags_behind_a_line_without_its_backslash_are_missing(tmp_path: Path, start: str) -> None:
    options = 'case "$1" in\n  -p|--port) P=$2;;\n  -h|--help) exit;;\nesac'
    missing = imported(
        tmp_path, f"{options}\n{start} \\\n  # --x \\\n  --port 9000 \\\n --seed 1\n", image=IMAGE
    ).missing
    assert missing == ["line 7: left out: --port 9000 --seed 1: the line before it lacks its backslash: add it"]


def test_only_programs_that_are_not_run_are_noted_and_no_words_of_the_shell(tmp_path: Path) -> None:
    flow = 'set -e; [ -n "$A" ] && unset B; for i in 1 2; do (( i > 1 )) && break; done; read -r a b <x; : x'
    choice = 'case "$A" in on|off) echo on;; *) fix /x;; esac'
    text = f"{flow}\n{choice}\n(cp a b)\nvllm serve org/m"
    result = imported(tmp_path, f"docker run --entrypoint bash {IMAGE} -c '{text}'")
    assert result.recipe.model.repo == "org/m"
    noted = [note.partition("not run: ")[2].partition(":")[0] for note in result.notes]
    assert noted == ["unset B", "echo on", "fix /x", "cp a b"]
