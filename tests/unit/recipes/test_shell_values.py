"""Values of a shell that the importer knows without running it, and those that it takes as unknown."""

import pytest

from sparkd.tools.importers.docker_line import read_script
from sparkd.tools.importers.marks import is_unknown, unknown
from sparkd.tools.importers.variables import Variables


@pytest.mark.parametrize("before", ["let P=90", "read P"])
def test_a_default_is_not_certain_behind_what_may_set_its_variable(before: str) -> None:
    (launch,) = read_script(f"{before}\nvllm serve m --port ${{P:-80}}", Variables({}, frozenset()))
    assert unknown(launch.words[-1])


@pytest.mark.parametrize(("end", "words"), [("", ["2", "2", "3"]), (" | :", ["unknown", "1"])])
def test_a_list_has_the_words_of_the_list_before_it_on_its_line(end: str, words: list[str]) -> None:
    script = f'L=(1) M=(1)\nL=(2) M=("${{L[@]}}" 3){end}\nvllm serve m "${{L[@]}}" "${{M[@]}}"'
    (launch,) = read_script(script, Variables({}, frozenset()))
    assert ["unknown" if is_unknown(word) else word for word in launch.words[3:]] == words


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
        ("vllm serve $(cd $(dirname $0) && pwd -P)", ["/home/o"]),
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
