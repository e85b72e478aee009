"""Scripts that start vLLM: which values are known without running them, and what is noted of the rest."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.unit.started_engines import COMPOSE, IMAGE, LINE, RUN, UNIT, imported

from sparkd.base.lib.errors import ConfigError


@pytest.mark.parametrize(
    ("script", "args"),
    [
        (f'MODEL="${{MODEL:-org/m}}"\nPORT=9000 # here\ndocker run {IMAGE} --model "$MODEL" --port ${{PORT}}\n',
         {"port": 9000}),
        (f'ARGS=(--seed 1\n  # why\n  --block-size 16)\ndocker run {IMAGE} --model org/m "${{ARGS[@]}}" "$@"',
         {"seed": 1, "block-size": 16}),
        (f"A=()\ndocker run {IMAGE} --model org/m ${{A[@]+\"${{A[@]}}\"}}", {}),
        (f'C="${{C:-$(python3 - <<E\nprint({{"a": (1)}})\nE\n)}}"\n{LINE} --seed "1"', {"seed": 1}),
        (f"X=$(sed -n '/${{a/p')\n{LINE} --seed 1", {"seed": 1}),
        (f"X=$(x | awk '/Up\\)/ {{print $1}}' | sed 's/\\(a\\)//' | jq '\\(.a)')\n{LINE} --seed 1", {"seed": 1}),
        (f"M=org/m\ndocker run {IMAGE} --model $M --tokenizer /t/${{M##*/}}", {"tokenizer": "/t/m"}),
        (f"{LINE} --dtype auto>log 2>&1", {"dtype": "auto"}),
        (f"{LINE} --dtype auto&>log", {"dtype": "auto"}),
        (f'X="--seed 1"\ndocker run {IMAGE} --model org/m $X 2>&1 | tee log &', {"seed": 1}),
        (f'cat <<EOF\ndocker run bad --model bad/bad\nEOF\n{LINE}', {}),
        *((f'cat <<{word}\ndocker run bad --model bad/bad\nEOF\nEOF-1.x\n{LINE}', {})
          for word in ("EOF-1.x", "'EOF-1.x'", '"EOF-1.x"', "\\EOF-1.x")),
        (f'if [ -z "$X" ]; then\n  echo "docker run"\nfi\nfor i in 1 2; do sleep $i; done\n{LINE}', {}),
        (f"if (( 1 << 3 )); then echo; fi\nfor (( i = 1; i < 1 << 3; i <<= 1 )); do echo; done\n{LINE}", {}),
        (f"[[ $x =~ (if|b) && ( -n $y || $z ) ]] && echo\nS=1\n{LINE} --seed $S", {"seed": 1}),
        (f"S=1\nS=2 | cat; : |& export S=3; A=(1) | unset S\n{LINE} --seed $S", {"seed": 1}),
        (LINE.replace("run", "-D --context=a -H b container run"), {}),
        (f"docker rm -f v || true\n{LINE} \\\n  --seed 1\ndocker logs -f v", {"seed": 1}),
        (f"docker run -d --name v {IMAGE} sleep infinity\ndocker exec -d v bash -c \"vllm serve org/m --seed 1\"",
         {"seed": 1}),
        *((f"{runner} '{LINE} --seed 1'", {"seed": 1})
          for runner in ("sudo -u x bash -c", "timeout 9 sh -c", "screen -dmS v bash -c", "sg docker -c", "su - x -c",
                         "sudo -E nohup timeout -k 5 1.5h env -i A=b taskset 0xff nice -n 5 bash -lc")),
        *((f"{other} '{RUN} --headless'\n{LINE} --seed 1", {"seed": 1})
          for other in ("timeout 60 ssh node2 bash -lc", "sudo -E ssh -t node2 sh -c", "sudo chroot /mnt bash -c",
                        "sudo -n useradd -m -s /bin/bash -c")),
        (f"env P=9 bash -c '{LINE} --port $P'", {"port": 9}),
        (f"""X="$(grep -E '^({'A' * 60})=' f)"\neval "$X"\nbash -c "echo $X '$X'; {LINE} --seed 1\"""", {"seed": 1}),
        (f"C='{LINE}'\nC+=\" --stop 'a b'\"\neval \"$C\" --seed 1", {"stop": "a b", "seed": 1}),
    ],
)  # fmt: skip
def test_a_script_becomes_what_it_would_start(script: str, args: dict[str, object], tmp_path: Path) -> None:
    recipe = imported(tmp_path, script).recipe
    assert recipe.args == args
    assert recipe.model.repo == "org/m"
    assert recipe.image.ref == IMAGE


@pytest.mark.parametrize(
    "script",
    [
        f'P=8000\n[ "$DEBUG" = 1 ] && P=9000\n{RUN}',
        f'[ -f "$P" ] || P=9000\n{RUN}',
        f'[ -f "$P" ] ||\n  # why\n  export P=9000; {RUN}',
        f'P=8000\n[ -n "$P" ] || P=9000\n{RUN}',
        f"test -f x && A=1 && P=9000; {RUN}",
        f"A=1 && test -f x && P=9000; {RUN}",
        f"(test -f x) && P=9000\n{RUN}",
        f"{{ test -f x; }} && P=9000\n{RUN}",
        f"test -f x && P=9000 || {RUN}",
        f"bash -c 'P=8000; test -f x && P=9000; {RUN}'",
        f"test -f x || true && P=9000\n{RUN}",
        f': "${{P:=}}"\ntest -f x && : "${{P:=9000}}"\n{RUN}',
        f'if test -f x; then : "${{P:=9000}}"; fi\n{RUN}',
        f"P=80\ntest -f x && P+=00\n{RUN}",
        f"P=80\n(( A = 1, P <<= 3 ))\n{RUN}",
        f"P=80\n(( P++ )) && echo\n{RUN}",
        f"P=80\nfor P in 1 2; do echo; done\n{RUN}",
        f"P=80\nread -r P <x\n{RUN}",
    ],
)
def test_the_value_is_not_known_where_an_operator_decides_about_the_assignment(script: str, tmp_path: Path) -> None:
    result = imported(tmp_path, script)
    assert "port" not in result.recipe.args
    assert any(re.search(r"--port: left out: what \$\{?P\}? stands for", note) for note in result.notes)


@pytest.mark.parametrize(
    "script",
    [
        f"P=8000\n(P=9000; echo hi)\n{RUN}",
        f"P=8000\n(P=9000\ncase $1 in a) P=1;; (b) P=2;; esac; (P=3); P=4)\n{RUN}",
        f"f() (P=9000)\nP=8000\n{RUN}",
        f"P=9000; (P=8000; {RUN})",
        f"export A=1 && export P=8000 && {RUN}",
        f"cd x && P=8000\n{RUN}",
        f"set -e; P=8000 && {RUN}",
        f"test -f x && P=8000 && {RUN}",
        f"A=(1) && P=8000\n{RUN}",
        f"test -f x && A=1\nP=8000\n{RUN}",
        f"test -f x && echo\nP=8000\n{RUN}",
        f"test -f x && A=(1)\nP=8000\n{RUN}",
        f"test -f x && >log\nP=8000\n{RUN}",
        f"test -f x || true && P=8000 && {RUN}",
        f"mkdir -p x && source x && P=8000\n{RUN}",
        f'test -f x && A=(--port 8000) && docker run {IMAGE} --model org/m "${{A[@]}}"',
        f'C="{RUN.replace("$P", "8000")}"\ntest -f x && C+=" --seed 1"\n$C',
        f'declare -a A=(--port 8000)\ndocker run {IMAGE} --model org/m "${{A[@]}}"',
        f'f() {{ B=(1); }}\nA=(--port 8000)\ndocker run {IMAGE} --model org/m "${{A[@]}}"',
        f': "${{P:=8000}}"\n{RUN}',
        f'[ -n "$P" ] || P=8000\n{RUN}',
        f'[ -z "${{P:-}}" ] && P=8000\n{RUN}',
        f"P=8000; : ${{P:=9000}}\n{RUN}",
        f'A=(--port 8000)\ntest -f x && A+=(--seed 1)\ndocker run {IMAGE} --model org/m "${{A[@]}}"',
    ],
)
def test_the_value_is_known_where_the_assignment_surely_counts(script: str, tmp_path: Path) -> None:
    recipe = imported(tmp_path, script).recipe
    assert recipe.args == {"port": 8000}


@pytest.mark.parametrize(
    ("text", "overrides", "args"),
    [
        (f"if x; then M=a/b; fi\ndocker run {IMAGE} --model $M", {"M": "org/m"}, {}),
        (f"if x; then D=docker; fi\n$D run {IMAGE} --model org/m", {"D": "sudo docker"}, {}),
        (f"docker run {IMAGE} --model $1", {"1": "org/m"}, {}),
        (f"docker run {IMAGE} <your-model> --seed 1", {"your-model": "org/m"}, {"seed": 1}),
        (f'if x; then A+=(y); fi\ndocker run {IMAGE} "${{A[@]}}" --seed 1', {"A": "org/m"}, {"seed": 1}),
        (f"docker run {IMAGE} bash -c 'vllm serve $M'", {"M": "org/m"}, {}),
        ('read -ra A <<<"$X"\nvllm serve "${A[@]}"', {"A": "org/m --seed 1"}, {"seed": 1}),
        (f'A=(--seed 1)\ntest -f x && A+=(--port 2)\nA+=(--dtype auto)\n{LINE} "${{A[@]}}"',
         {"A": "--port 3 --dtype half"}, {"seed": 1, "port": 3, "dtype": "half"}),
        (f'A=(run)\ntest -f x && A+=(-p 1:1)\nA+=({IMAGE} --model org/m)\ndocker "${{A[@]}}"', {"A": "-p 9:8000"},
         {"port": 9}),
        ("sudo runuser -u v -- vllm serve $M -cc 1\n", {"M": "org/m"}, {"compilation-config": 1}),
        ("bash -c 'vllm serve $M'\n", {"M": "org/m"}, {}),
        (f"{UNIT}Environment=M=org/other\nExecStart=/usr/bin/docker run {IMAGE} --model ${{M}}\n", {"M": "org/m"}, {}),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize("text", ["it's", "A=(b", '"$(x'])
def test_an_eval_without_an_end_is_noted_and_a_model_may_have_an_apostrophe(tmp_path: Path, text: str) -> None:
    notes = imported(tmp_path, f"eval {shlex.quote(text)} -y\ndocker run {IMAGE} --model /m/Jan\u2019s/m").notes
    assert notes[0] == f"line 1: eval {text} -y: not read: give what it sets by -o NAME=VALUE"


def test_only_programs_that_are_not_run_are_noted_and_no_words_of_the_shell(tmp_path: Path) -> None:
    flow = 'set -e; [ -n "$A" ] && unset A; for i in 1 2; do (( i > 1 )) && break; done; read -r a b <x; : x'
    choice = 'case "$A" in on|off) echo on;; *) fix /x;; esac'
    text = f"{flow}\n{choice}\n(cp a b)\nvllm serve org/m"
    result = imported(tmp_path, f"docker run --entrypoint bash {IMAGE} -c '{text}'")
    assert result.recipe.model.repo == "org/m"
    noted = [note.partition("not run: ")[2].partition(":")[0] for note in result.notes]
    assert noted == ["echo on", "fix /x", "cp a b"]


@pytest.mark.parametrize("word", ["{a,b}", "{a..c}", "*", "x?", "$'a\\nb'", '{"a":1,"b":2}', "--x={a,b}", "~/x*"])
def test_a_word_that_bash_expands_is_not_taken_as_it_is(word: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not known"):
        imported(tmp_path, f"docker run {IMAGE} --model {word}\n")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{LINE} --block-size 16 --seed $(id -u)", r"line 1: --seed: left out: what \$\(id -u\) stands for"),
        (f"{LINE} --seed `id` --block-size 16", "line 1: --seed: left out: what `id` stands for"),
        (f"if x; then S=1; fi\n{LINE} --block-size 16 --seed=$S", r"line 2: --seed: .* in \$\{S\} is .* -o S=VALUE"),
        (f"{LINE} --seed $1 --block-size 16", r"line 1: --seed: left out: what \$1 stands for"),
        (f"{LINE} --block-size 16 $MORE", r"line 1: left out: what \$MORE stands for"),
        (f"{LINE} $(cat more) --block-size 16", r"line 1: left out: what \$\(cat more\) stands for"),
        (f"docker run {IMAGE} vllm serve org/m $MORE --block-size 16", r"line 1: left out: what \$MORE stands for"),
        (f"docker run {IMAGE} bash -c \"vllm serve org/m --block-size 16 --seed $S\"",
         r"line 1: --seed: left out: what \$S stands for in \$S is not known: write its value, or give -o S=VALUE"),
        (f"{LINE} --seed {{a,b}} --block-size 16", "line 1: --seed: left out: what {a,b} stands for"),
        (f"{LINE} --block-size 16 --seed <n>", "line 1: --seed: left out: what <n> stands for"),
        (f"F=(--block-size 16)\nif x; then F+=(--seed 1); fi\n{LINE} ${{F[@]}}",
         r"line 3: left out: what \$\{F\[@\]\} stands for"),
        (f"docker run --gpus all ${{G[@]}} {IMAGE} --model org/m --block-size 16",
         r"line 1: left out: what \$\{G\[@\]\} stands for is not known: write it"),
        (f"{UNIT}ExecStart=/usr/bin/{LINE} --block-size 16 --seed %i\n",
         "line 4: --seed: left out: what %i stands for"),
        (COMPOSE.replace("org/m", "org/m --block-size 16 --seed ${S}"), r"line 4: --seed: .* -o S=VALUE"),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(
    ("text", "line", "block"),
    [
        (f"f() {{\n  {LINE}\n}}\nf\n", 2, 1),
        (f"\nif true; then\n{LINE}\nfi", 3, 2),
        (f"while true; do {LINE}; done", 1, 1),
        (f"docker run --entrypoint bash {IMAGE} -c 'if [ a ]; then vllm serve org/m; fi'", 1, 1),
    ],
)  # fmt: skip
def test_what_a_condition_starts_is_taken_and_the_condition_noted(
    text: str, line: int, block: int, tmp_path: Path
) -> None:
    result = imported(tmp_path, text)
    assert result.recipe.model.repo == "org/m"
    assert not result.missing
    assert result.notes[0] == f"line {line}: what begins in line {block} decides whether it runs: taken as if it does"


def test_a_condition_of_another_container_is_not_noted(tmp_path: Path) -> None:
    assert imported(tmp_path, f"if x; then docker create redis; fi\n{LINE}").notes == []


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("'{a,b}'", "{a,b}"),
        ('"*"', "*"),
        ("$'a b'", "a b"),
        ('$"a"', "a"),
        ("{a}", "{a}"),
        ("\\*", "*"),
        ("a'?'", "a?"),
        ("'{'a,b}", "{a,b}"),
    ],
)
def test_a_word_that_bash_takes_as_it_is(word: str, value: str, tmp_path: Path) -> None:
    assert imported(tmp_path, f"{LINE} --served-model-name {word}\n").recipe.model.served_name == value
