"""Random scripts, read by the importer and run by bash: what is taken as known is what bash makes of it."""

import itertools
import random
import shlex
import subprocess
from collections import defaultdict
from collections.abc import Iterator

import pytest

from sparkd.tools.importers.docker_line import read_script
from sparkd.tools.importers.marks import shown, unknown
from sparkd.tools.importers.variables import Variables

SCRIPTS = 120
TESTS = "pq"
"""Names of programs that succeed or fail, in each of their four outcomes."""
SEPARATORS = ("; ", "\n", " && ", " && ", " || ", " &&\n", " ||\n", "\n\n")
LEAST_KNOWN = 50
"""Of the servers that the scripts of a seed start: 53 to 83 of some 220 were seen."""


class Writer:
    """Writes scripts that assign A, B, C and the list L, and start servers with their values."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._ids = itertools.count(1)

    def script(self) -> str:
        first = self._random.choice(("A=0", "A=", ":"))
        return f"{first}\nB=0\nC=0\nL=(0)\n{self._commands(0)}\n{self._server()}\n"

    def _commands(self, depth: int) -> str:
        text = self._command(depth)
        for _ in range(self._random.randint(0, 4)):
            text += self._random.choice(SEPARATORS) + self._command(depth)
        return text

    def _command(self, depth: int) -> str:
        name, digit = self._random.choice("ABC"), self._random.randint(1, 9)
        simple = (
            f"{name}={digit}", f"{name}=", f"{name}+={digit}", f"export {name}={digit}", f"{name}=${name}",
            f': "${{{name}:={digit}}}"', f"L=({digit})", f"L+=({digit} ${name})", f"declare -a L=({digit})",
            f"unset {name}", f'[ -z "${name}" ]', f'[[ -n "${{{name}}}" ]]', "p", "q", "! p", "cd /", "set -e +e",
            f"{name}={digit} | :", f": | export {name}={digit}", f"unset {name} |& :", f"(( {name} = 1 << {digit} ))",
            f"[[ {name} =~ (if|{name}) && ( x ) ]]", f"for {name} in {digit}; do :; done", f"read {name} <<<{digit}",
            f"IFS= read -r {name} <<<{digit}", f"printf -v {name} %s {digit}",
            f"{name}=$(( {name} * 2 + ({digit} - 1) ))", f": $(( {name} += {digit} ))", f"{name}=$A-$B",
            f'{name}="${name} {digit}"',
            f"let {name}={digit}", f"let '{name} += {digit}' {name}++", f"L=({digit}) | :", f"L+=({digit}) | :",
            f': "${{{name}:={digit}}}" | :', f': | : "${{{name}:={digit}}}"',
            f"for (({name} = 1; {name} < 1 << 3; {name} <<= 1)); do :; done", f"if (( {name} ++ )); then :; fi",
        )  # fmt: skip
        if self._random.random() < 0.2:
            return self._server()
        if depth == 2 or self._random.random() < 0.8:
            return self._random.choice(simple)
        inner = self._commands(depth + 1)
        blocks = (
            f"( {inner} )", f"{{ {inner}; }}", f": | {{ {inner}; }}", f"if p; then {inner}; fi",
            f"if q; then function f {{ :; }}; {inner}; fi", f"case x in x) {inner};; esac",
        )  # fmt: skip
        return self._random.choice(blocks)

    def _server(self) -> str:
        return f'vllm serve id{next(self._ids)} $A,$B,$C "${{L[@]}}"'


def run_by_bash(scripts: list[str]) -> dict[str, set[str]]:
    """The words of each server, by its id: one text for each that they have come to."""
    lines = []
    for script, *ends in itertools.product(scripts, (0, 1), (0, 1)):
        tests = "; ".join(f"{name}() {{ return {end}; }}" for name, end in zip(TESTS, ends, strict=True))
        lines.append(f'( {tests}; vllm() {{ echo "$*"; }}; eval {shlex.quote(script)} )')
    done = subprocess.run(["bash"], input="\n".join(lines), capture_output=True, text=True, timeout=60, check=False)
    servers: dict[str, set[str]] = defaultdict(set)
    for line in done.stdout.splitlines():
        _, name, words = line.split(" ", 2)
        servers[name].add(words)
    return servers


def read_known(scripts: list[str]) -> Iterator[tuple[str, str]]:
    """Id and words of each server whose words the importer takes as known."""
    for script in scripts:
        for launch in read_script(script, Variables({}, frozenset())):
            _, _, name, *words = launch.words
            if not any(map(unknown, words)):
                yield name, " ".join(map(shown, words))


@pytest.mark.parametrize("seed", range(3))
def test_words_that_are_taken_as_known_are_those_of_bash_in_each_outcome(seed: int) -> None:
    writer = Writer(seed)
    scripts = [writer.script() for _ in range(SCRIPTS)]
    started = run_by_bash(scripts)
    known = {name: words for name, words in read_known(scripts) if name in started}
    assert {name: started[name] for name, words in known.items() if started[name] != {words}} == {}
    assert len(known) >= LEAST_KNOWN
