"""Scripts that start vLLM: what bash would start, read without running it. Each row is named by its rule of bash."""

from pathlib import Path

import pytest
from tests.unit.started_engines import IMAGE, LINE, RUN, imported

STARTED: dict[str, tuple[str, dict[str, object]]] = {
    "a variable that nothing sets has its default, and a comment is no value": (
        f'MODEL="${{MODEL:-org/m}}"\nPORT=9000 # here\ndocker run {IMAGE} --model "$MODEL" --port ${{PORT}}\n',
        {"port": 9000},
    ),
    "an array has words of several lines, and a script without arguments has no $@": (
        f'ARGS=(--seed 1\n  # why\n  --block-size 16)\ndocker run {IMAGE} --model org/m "${{ARGS[@]}}" "$@"',
        {"seed": 1, "block-size": 16},
    ),
    "an empty array is no word": (f'A=()\ndocker run {IMAGE} --model org/m ${{A[@]+"${{A[@]}}"}}', {}),
    "a here-document in a substitution may hold parentheses": (
        f'C="${{C:-$(python3 - <<E\nprint({{"a": (1)}})\nE\n)}}"\n{LINE} --seed "1"',
        {"seed": 1},
    ),
    "a brace in quotes opens nothing": (f"X=$(sed -n '/${{a/p')\n{LINE} --seed 1", {"seed": 1}),
    "a parenthesis in quotes ends no substitution": (
        f"X=$(x | awk '/Up\\)/ {{print $1}}' | sed 's/\\(a\\)//' | jq '\\(.a)')\n{LINE} --seed 1",
        {"seed": 1},
    ),
    "## takes a beginning off": (
        f"M=org/m\ndocker run {IMAGE} --model $M --tokenizer /t/${{M##*/}}",
        {"tokenizer": "/t/m"},
    ),
    "> ends the word before it": (f"{LINE} --dtype auto>log 2>&1", {"dtype": "auto"}),
    "&> ends the word before it": (f"{LINE} --dtype auto&>log", {"dtype": "auto"}),
    "a value without quotes is split at its spaces": (
        f'X="--seed 1"\ndocker run {IMAGE} --model org/m $X 2>&1 | tee log &',
        {"seed": 1},
    ),
    "a here-document is no command": (f"cat <<EOF\ndocker run bad --model bad/bad\nEOF\n{LINE}", {}),
    **{
        f"a here-document ends at its whole word: {word}": (
            f"cat <<{word}\ndocker run bad --model bad/bad\nEOF\nEOF-1.x\n{LINE}",
            {},
        )
        for word in ("EOF-1.x", "'EOF-1.x'", '"EOF-1.x"', "\\EOF-1.x")
    },
    "what is printed, and a loop, start nothing": (
        f'if [ -z "$X" ]; then\n  echo "docker run"\nfi\nfor i in 1 2; do sleep $i; done\n{LINE}',
        {},
    ),
    "<< in arithmetic begins no here-document": (
        f"if (( 1 << 3 )); then echo; fi\nfor (( i = 1; i < 1 << 3; i <<= 1 )); do echo; done\n{LINE}",
        {},
    ),
    "within [[ ]] parentheses, words and operators are the test's": (
        f"[[ $x =~ (if|b) && ( -n $y || $z ) ]] && echo\nS=1\n{LINE} --seed $S",
        {"seed": 1},
    ),
    "what a part of a pipe sets or unsets is lost": (
        f"S=1\nS=2 | cat; : |& export S=3; A=(1) | unset S\n{LINE} --seed $S",
        {"seed": 1},
    ),
    "docker has options before its command": (LINE.replace("run", "-D --context=a -H b container run"), {}),
    "a backslash joins two lines, and docker rm and logs start nothing": (
        f"docker rm -f v || true\n{LINE} \\\n  --seed 1\ndocker logs -f v",
        {"seed": 1},
    ),
    "docker exec starts the engine in a container that sleeps": (
        f'docker run -d --name v {IMAGE} sleep infinity\ndocker exec -d v bash -c "vllm serve org/m --seed 1"',
        {"seed": 1},
    ),
    **{
        f"here it runs: {runner}": (f"{runner} '{LINE} --seed 1'", {"seed": 1})
        for runner in (
            "sudo -u x bash -c",
            "timeout 9 sh -c",
            "screen -dmS v bash -c",
            "sg docker -c",
            "su - x -c",
            "sudo -E nohup timeout -k 5 1.5h env -i A=b taskset 0xff nice -n 5 bash -lc",
        )
    },
    **{
        f"elsewhere, or not at all: {other}": (f"{other} '{RUN} --headless'\n{LINE} --seed 1", {"seed": 1})
        for other in (
            "timeout 60 ssh node2 bash -lc",
            "sudo -E ssh -t node2 sh -c",
            "sudo chroot /mnt bash -c",
            "sudo -n useradd -m -s /bin/bash -c",
        )
    },
    "env sets a variable for its command": (f"env P=9 bash -c '{LINE} --port $P'", {"port": 9}),
    "a command stands beside a value that is not known": (
        f"""X="$(grep -E '^({"A" * 60})=' f)"\neval "$X"\nbash -c "echo $X '$X'; {LINE} --seed 1\"""",
        {"seed": 1},
    ),
    "an option in the text of an eval assigns nothing": (
        f"model=1\neval 'x --model=$model'\n{LINE} --seed $model",
        {"seed": 1},
    ),
    "eval reads the quotes within a value": (
        f"C='{LINE}'\nC+=\" --stop 'a b'\"\neval \"$C\" --seed 1",
        {"stop": "a b", "seed": 1},
    ),
}


@pytest.mark.parametrize(("script", "args"), STARTED.values(), ids=STARTED)
def test_a_script_becomes_what_it_would_start(script: str, args: dict[str, object], tmp_path: Path) -> None:
    recipe = imported(tmp_path, script).recipe
    assert recipe.args == args
    assert recipe.model.repo == "org/m"
    assert recipe.image.ref == IMAGE


CONDITIONS = {
    "a function": (f"f() {{\n  {LINE}\n}}\nf\n", 2, 1),
    "if": (f"\nif true; then\n{LINE}\nfi", 3, 2),
    "while": (f"while true; do {LINE}; done", 1, 1),
    "if in a container's bash": (
        f"docker run --entrypoint bash {IMAGE} -c 'if [ a ]; then vllm serve org/m; fi'",
        1,
        1,
    ),
}


@pytest.mark.parametrize(("text", "line", "block"), CONDITIONS.values(), ids=CONDITIONS)
def test_what_a_condition_starts_is_taken_and_the_condition_noted(
    text: str, line: int, block: int, tmp_path: Path
) -> None:
    result = imported(tmp_path, text)
    assert result.recipe.model.repo == "org/m"
    assert not result.missing
    assert result.notes[0] == f"line {line}: what begins in line {block} decides whether it runs: taken as if it does"


def test_a_condition_of_another_container_is_not_noted(tmp_path: Path) -> None:
    assert imported(tmp_path, f"if x; then docker create redis; fi\n{LINE}").notes == []
