"""Which values of a script are known without running it. Each row is named by its rule of bash."""

import re
from pathlib import Path

import pytest
from tests.unit.started_engines import IMAGE, LINE, RUN, imported

from sparkd.base.lib.errors import ConfigError

NOT_KNOWN = {
    "&& behind a test": f'P=8000\n[ "$DEBUG" = 1 ] && P=9000\n{RUN}',
    "|| behind a test": f'[ -f "$P" ] || P=9000\n{RUN}',
    "|| and the assignment on a later line": f'[ -f "$P" ] ||\n  # why\n  export P=9000; {RUN}',
    "|| behind a test of what was set before": f'P=8000\n[ -n "$P" ] || P=9000\n{RUN}',
    "&& behind a test, with an assignment between": f"test -f x && A=1 && P=9000; {RUN}",
    "&& behind a test that is not the first": f"A=1 && test -f x && P=9000; {RUN}",
    "&& behind a test in a subshell": f"(test -f x) && P=9000\n{RUN}",
    "&& behind a test in braces": f"{{ test -f x; }} && P=9000\n{RUN}",
    "the engine starts where the assignment was not reached": f"test -f x && P=9000 || {RUN}",
    "&& within bash -c": f"bash -c 'P=8000; test -f x && P=9000; {RUN}'",
    "&& behind || true is read as behind the test": f"test -f x || true && P=9000\n{RUN}",
    ":= behind a test": f': "${{P:=}}"\ntest -f x && : "${{P:=9000}}"\n{RUN}',
    ":= within if": f'if test -f x; then : "${{P:=9000}}"; fi\n{RUN}',
    "+= behind a test": f"P=80\ntest -f x && P+=00\n{RUN}",
    "arithmetic assigns": f"P=80\n(( A = 1, P <<= 3 ))\n{RUN}",
    "arithmetic counts up": f"P=80\n(( P++ )) && echo\n{RUN}",
    "for sets its variable": f"P=80\nfor P in 1 2; do echo; done\n{RUN}",
    "read sets its variable": f"P=80\nread -r P <x\n{RUN}",
}


@pytest.mark.parametrize("script", NOT_KNOWN.values(), ids=NOT_KNOWN)
def test_the_value_is_not_known_where_what_sets_it_is_not_sure(script: str, tmp_path: Path) -> None:
    result = imported(tmp_path, script)
    assert "port" not in result.recipe.args
    assert any(re.search(r"--port: left out: what \$\{?P\}? stands for", note) for note in result.notes)


KNOWN = {
    "what a subshell sets is lost": f"P=8000\n(P=9000; echo hi)\n{RUN}",
    "a case's parentheses end no subshell": (
        f"P=8000\n(P=9000\ncase $1 in a) P=1;; (b) P=2;; esac; (P=3); P=4)\n{RUN}"
    ),
    "a function's body may be a subshell": f"f() (P=9000)\nP=8000\n{RUN}",
    "a subshell knows what it has set": f"P=9000; (P=8000; {RUN})",
    "export succeeds": f"export A=1 && export P=8000 && {RUN}",
    "cd is taken to succeed": f"cd x && P=8000\n{RUN}",
    "an assignment succeeds": f"set -e; P=8000 && {RUN}",
    "the engine starts only behind the assignment": f"test -f x && P=8000 && {RUN}",
    "an array's assignment succeeds": f"A=(1) && P=8000\n{RUN}",
    "a new line ends what && decides: an assignment": f"test -f x && A=1\nP=8000\n{RUN}",
    "a new line ends what && decides: a command": f"test -f x && echo\nP=8000\n{RUN}",
    "a new line ends what && decides: an array": f"test -f x && A=(1)\nP=8000\n{RUN}",
    "a new line ends what && decides: a redirection": f"test -f x && >log\nP=8000\n{RUN}",
    "the engine starts only behind the assignment, after || true": f"test -f x || true && P=8000 && {RUN}",
    "mkdir and source are taken to succeed": f"mkdir -p x && source x && P=8000\n{RUN}",
    "the engine starts only behind the array": (
        f'test -f x && A=(--port 8000) && docker run {IMAGE} --model org/m "${{A[@]}}"'
    ),
    "a text that a test may lengthen keeps its beginning": (
        f'C="{RUN.replace("$P", "8000")}"\ntest -f x && C+=" --seed 1"\n$C'
    ),
    "declare -a sets an array": f'declare -a A=(--port 8000)\ndocker run {IMAGE} --model org/m "${{A[@]}}"',
    "a function's array leaves another alone": (
        f'f() {{ B=(1); }}\nA=(--port 8000)\ndocker run {IMAGE} --model org/m "${{A[@]}}"'
    ),
    ":= sets what nothing has set": f': "${{P:=8000}}"\n{RUN}',
    "|| behind -n sets what nothing has set": f'[ -n "$P" ] || P=8000\n{RUN}',
    "&& behind -z sets what nothing has set": f'[ -z "${{P:-}}" ] && P=8000\n{RUN}',
    ":= leaves alone what is set": f"P=8000; : ${{P:=9000}}\n{RUN}",
    "an array that a test may lengthen keeps its beginning": (
        f'A=(--port 8000)\ntest -f x && A+=(--seed 1)\ndocker run {IMAGE} --model org/m "${{A[@]}}"'
    ),
}


@pytest.mark.parametrize("script", KNOWN.values(), ids=KNOWN)
def test_the_value_is_known_where_the_assignment_surely_counts(script: str, tmp_path: Path) -> None:
    recipe = imported(tmp_path, script).recipe
    assert recipe.args == {"port": 8000}


EXPANDED = {
    "alternatives": "{a,b}",
    "a range": "{a..c}",
    "any names": "*",
    "any letter": "x?",
    "an escape in $''": "$'a\\nb'",
    "JSON without quotes": '{"a":1,"b":2}',
    "alternatives within a word": "--x={a,b}",
    "any names below ~": "~/x*",
}


@pytest.mark.parametrize("word", EXPANDED.values(), ids=EXPANDED)
def test_a_word_that_bash_expands_is_not_taken_as_it_is(word: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not known"):
        imported(tmp_path, f"docker run {IMAGE} --model {word}\n")


AS_IT_IS = {
    "alternatives in quotes": ("'{a,b}'", "{a,b}"),
    "a star in quotes": ('"*"', "*"),
    "$'' without an escape": ("$'a b'", "a b"),
    '$"" is for translations': ('$"a"', "a"),
    "braces around one word": ("{a}", "{a}"),
    "a backslash before a star": ("\\*", "*"),
    "a question mark in quotes": ("a'?'", "a?"),
    "a brace in quotes begins no alternatives": ("'{'a,b}", "{a,b}"),
}


@pytest.mark.parametrize(("word", "value"), AS_IT_IS.values(), ids=AS_IT_IS)
def test_a_word_that_bash_takes_as_it_is(word: str, value: str, tmp_path: Path) -> None:
    assert imported(tmp_path, f"{LINE} --served-model-name {word}\n").recipe.model.served_name == value
