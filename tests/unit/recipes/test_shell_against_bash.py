"""Random scripts, read by the importer and run by bash: what is taken as known is what bash makes of it."""

import itertools
import random
import shlex
import subprocess
from collections import defaultdict
from collections.abc import Iterator

import pytest

from sparkd.tools.importers.docker_line import read_script
from sparkd.tools.importers.variables import Variables, is_unknown, shown, unknown

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


@pytest.mark.parametrize(
    ("before", "known"),
    [("source ~/vllm/bin/activate", True), ("let P=90", False), ("read P", False)],
)
def test_a_default_is_not_certain_behind_what_may_set_its_variable(before: str, *, known: bool) -> None:
    (launch,) = read_script(f"{before}\nvllm serve m --port ${{P:-80}}", Variables({}, frozenset()))
    assert (launch.words[-1] == "80") is known


@pytest.mark.parametrize(("end", "words"), [("", ["2", "2", "3"]), (" | :", ["unknown", "1"])])
def test_a_list_has_the_words_of_the_list_before_it_on_its_line(end: str, words: list[str]) -> None:
    script = f'L=(1) M=(1)\nL=(2) M=("${{L[@]}}" 3){end}\nvllm serve m "${{L[@]}}" "${{M[@]}}"'
    (launch,) = read_script(script, Variables({}, frozenset()))
    assert ["unknown" if is_unknown(word) else word for word in launch.words[3:]] == words


def test_a_file_of_settings_is_noted_with_its_line_since_it_is_not_read() -> None:
    text = 'if [ -f .env ]; then\n  . "$D/.env"\nfi\nsource /opt/vllm/bin/activate\nvllm serve m --port ${P:-80}'
    sourced, launch = read_script(text, Variables({}, frozenset()))
    (note,) = sourced.notes
    assert (note.line, note.text) == (2, ". $D/.env: not read: give what it sets by -o NAME=VALUE")
    assert launch.words[-1] == "80"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("cd /a/b\ncd ../c || exit 1\nvllm serve $(pwd) $PWD", ["/a/c", "/a/c"]),
        ("(cd /a)\nif x; then cd /b; fi\nvllm serve $(cd /c/d/.. && pwd) $PWD", ["/c", "?"]),
        ('Y="a b"\nX=$Y\nexport Z=$Y\nvllm serve "$X" "$Z" $Y', ["a b", "a b", "a", "b"]),
        ('D="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." &>/dev/null && pwd -P)"\nvllm serve $D', ["/home"]),
        (
            'N=$(basename "$0")\nM=$(cd "$(dirname "$0")" && pwd)/m\nvllm serve $N $(basename $M) $M',
            ["s", "m", "/home/o/m"],
        ),
        ("A=3 B=1+1\nvllm serve $((A * ($A - 1))) $(($B*2)) $((B*2)) $((1+${C:-2}))", ["6", "3", "4", "3"]),
        ("A=08\nvllm serve $((A)) $((C)) $((10#7)) $((7 / 2)) $((2**3)) $((" + "1+" * 120 + "1))", ["?"] * 6),
        (
            'A="1000000000 + 1000000000"\nvllm serve $((A)) $((1 2)) $((1 (2))) $((4294967296 * 4294967296))',
            ["2000000000", "?", "?", "?"],
        ),
        (f"A='{'1+' * 100}1'\nvllm serve $((A)) $((A - A))", ["?", "?"]),
        ("A=3\nvllm serve $(( 5 - A )) $((5 -\n2)) $(( 9223372036854775807 ))", ["2", "3", "9223372036854775807"]),
        ("cd ~\nA=$PWD; cd ~; B=$PWD; (cd ~); vllm serve $A $B", ["/root", "/root"]),
        ('A="~/a"\nvllm serve $(cd ~/a && pwd) $(cd $A && pwd) $(basename a/*) $(dirname a/[x]/b)', ["?"] * 4),
        ('cd "~"\nvllm serve $PWD $(cd a/{b,c} && pwd) $(basename "a\\b") $(dirname a/?/x)', ["?"] * 4),
        ("A=1\nvllm serve $((A++)) $A", ["?", "?"]),
        ('C="vllm serve m"\nif x; then C="$C --y"; fi\n[ -n "$D" ] && C="$C $D"\nexec $C', ["serve", "m", "?", "?"]),
        ('vllm serve "$(( 1 << 2 ))" y', ["?", "y"]),
    ],
)
def test_a_value_that_needs_no_run_is_known(script: str, words: list[str]) -> None:
    values = {"PWD": "/home/o", "HOME": "/root", "0": "/home/o/s", "BASH_SOURCE": "/home/o/s"}
    (launch,) = read_script(script, Variables(values, frozenset()))
    assert ["?" if unknown(word) else word for word in launch.words[2:]] == words
