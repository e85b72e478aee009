"""Texts that start no engine plainly are refused with their line."""

from pathlib import Path

import pytest
from tests.unit.started_engines import COMPOSE, IMAGE, LINE, UNIT, imported

from sparkd.base.lib.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"docker run {IMAGE} --model <name>", "line 1: what <name> stands for in <name> is not known"),
        (f"docker run {IMAGE} --model '<name>'", "line 1: names the model <name>: write its name there"),
        (f"docker run {IMAGE} --model “org/m”", "line 1: names the model “org/m”: write its name there, in plain"),
        (COMPOSE.replace("org/m", "org/<name>"), "line 4: names the model org/<name>: write its name there"),
        (f"for m in a b; do docker run {IMAGE} --model $m; done", r"line 1: what \$\{m\} stands for .* -o m=VALUE"),
        (f"M=a\nif q; then M=ab; fi\ndocker run {IMAGE} --model $M", r"line 3: what \$\{M\} stands for in \$\{M\} is"),
        ("F+=(--rm)\ndocker run ${G[@]}", "line 2: docker run names no image: write it"),
        (f"{LINE} 'x", "line 1: the quote ' has no end"),
        (f'\n{LINE} "x', 'line 2: the quote " has no end'),
        ("vllm serve org/m", "line 1: names no image to run it in: --image REF"),
        (f"docker run {IMAGE} --config /x.yaml", "line 1: names no model .* but a file of flags, --config: write them"),
        (f'M=""\ndocker run {IMAGE} --model "$M"', "line 2: names no model right behind"),
        (f'docker run {IMAGE} "$1" "$@"', r"line 1: what \$1 stands for in \$1 is not known"),
        ("pgrep -f vllm.entrypoints.openai.api_server", "line 1: starts no vLLM server"),
        ("docker compose run -e A=1 vllm serve org/m", "line 1: starts no vLLM server"),
        (f"case $1 in\na) {LINE};;\nb)\n{LINE};;\nesac", "line 2: vLLM is started by 2 commands, in lines 2, 4: keep"),
        (f"if x; then D=docker; fi\nsudo $D run {IMAGE} --model org/m", "line 2: what .* or give -o D=VALUE"),
        (f"if [[ -n $x ]\n{LINE}", r"line 2: \[\[ has no end: close it"),
        ("docker run redis", "line 1: starts no vLLM server by itself: import the file"),
        ("docker run redis bash -c 'exec \"$@\"' -- python3 --model org/m", "line 1: .* by itself: import the file"),
        ("docker run redis bash /x.sh\ndocker run $I --model org/m", r"line 2: image: what \$I stands .* -o I=VALUE"),
        (f"\ndocker run $OPTIONS {IMAGE} --model org/m", r"line 2: image: what \$OPTIONS stands for"),
        ("cd x\ndocker compose -f a.yaml --env-file e up -d", "line 2: .*, but runs a.yaml: import that file"),
        ("sudo docker compose run --rm vllm vllm serve m", "line 1: .*, but runs its compose file: import that file"),
        ("cat >a.yml <<E\nservices:\nE\ndocker compose up", "line 4: .*, but runs its compose file: import that file"),
        ("docker run -Z x --model y", "line 1: docker's option -Z is not known"),
        (COMPOSE + f"  b:\n    image: {IMAGE}\n    command: --model org/b\n",
         "2 services vllm, b: name one by --service"),
        (COMPOSE.replace("--model org/m", "--model ${M:?say it}"), r"line 4: what \$M stands for"),
        (COMPOSE.replace("--model org/m", '"--model org/m --seed ${X"'), "line 4: command: "),
        (COMPOSE + "    extends: x\n", "line 5: extends: write the service out, or name another by --service"),
        ("services: 3\n# vllm", "line 1: services: must be a mapping"),
        ("services:\n  a:\n    image: [x]\n", "line 3: image: must be text"),
        (f"{COMPOSE}a: [\n", "line 5: while parsing a flow node"),
        ("services:\n" + "".join(f"  s{number}: {{image: a}}\n" for number in range(201)),
         "line 1: services: more than 200"),
        ("docker run" + " -v /a:/b" * 1001 + f" {IMAGE} --model org/m", "line 1: has more than 1000 options"),
        ("X=aaaaaaaaaa\n" + "X=$X$X$X$X$X$X$X$X\n" * 9 + LINE, "line 6: a word is longer than 100000 characters"),
        (f"{UNIT}ExecStart=/usr/bin/{LINE} 'x\n", "line 4: execstart|line 4: ExecStart: no closing quotation"),
    ],
)  # fmt: skip
def test_what_is_no_plain_start_is_refused_with_its_line(text: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=fault):
        imported(tmp_path, text)
