"""Any text without NUL goes from a plan through the script and a real bash to the program unchanged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkd.base.plan import script
from sparkd.base.plan.model import Secret
from sparkd.base.vllm.args import JsonValue, check_variable_name, command_line

RECORD = """\
import json, os, sys
words = [os.fsencode(word).decode() for word in sys.argv[1:]]
names = {os.fsencode(k).decode(): os.fsencode(v).decode() for k, v in os.environ.items()}
print(json.dumps([words, names]))
"""

TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\0")
    | st.sampled_from(list("'\"$`\\!*?~#&|;<>(){}[]= \t\n\r-\x7f\x1b\u2028é漢🦙")),
    max_size=30,
)
NASTY = ["", "-n", "--", "$(id)", "`id`", "${HOME}", "'", "''\"'", "a\nb", "\n", "\\\n", "!!", "~", "*", "=", "a=b"]
VALUE = st.sampled_from(NASTY) | TEXT
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | VALUE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(VALUE, inner, max_size=3),
    max_leaves=8,
)
NAME = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,12}\Z", alphabet="AbZ_09PATHLCIFS") | st.sampled_from(
    ["PATH", "LC_ALL", "LANG", "TZ", "HOME", "CDPATH", "ENV", "PS4", "OPTARG", "TMOUT", "LD_X", "HISTFILE",
     "NCCL_IB_HCA"]
)  # fmt: skip


def is_variable(name: str) -> bool:
    try:
        return check_variable_name(name) == name
    except ValueError:
        return False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("launch")
    (made / "record.py").write_text(RECORD)
    return made


def run_script(folder: Path, text: str) -> tuple[list[str], dict[str, str]]:
    (folder / "launch.sh").write_text(text, encoding="utf-8", newline="")
    done = subprocess.run(
        ["/bin/bash", str(folder / "launch.sh")], env={}, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    words, names = json.loads(done.stdout)
    return words, names


def program(folder: Path) -> tuple[str, ...]:
    # -I -S: neither the site nor PYTHON* variables of the test may change what is recorded.
    return (sys.executable, "-I", "-S", "-X", "utf8=0", str(folder / "record.py"))


@settings(max_examples=25, deadline=None)  # each starts a shell
@given(
    argv=st.lists(VALUE, max_size=6),
    env=st.dictionaries(NAME.filter(is_variable), VALUE, max_size=4),
    args=st.dictionaries(st.sampled_from(["a", "b-c", "d.e_f"]), JSON, max_size=3),
)
def test_any_argument_and_variable_arrives(
    folder: Path, argv: list[str], env: dict[str, str], args: dict[str, JsonValue]
) -> None:
    words = [*argv, *command_line(args)]
    text = script.render_script("t", script.exec_lines((*program(folder), *words)), env.items(), [])
    got_words, got_env = run_script(folder, text)
    assert got_words == words
    assert {name: got_env.get(name) for name in env} == env
    assert set(got_env) - set(env) <= {"PWD", "SHLVL", "_", "OLDPWD", "LC_CTYPE"}


def test_a_secret_is_read_in_the_container_and_is_not_in_the_text(folder: Path) -> None:
    (folder / "HF_TOKEN").write_text('it\'s $a `s` "secret"\nof two lines\n')
    text = script.render_script("t", script.exec_lines(program(folder)), [], [Secret("HF_TOKEN", "/etc/x")])
    text = text.replace(script.SECRETS_TARGET, str(folder))
    assert "secret" not in text.replace("the file of this secret is empty", "").replace(str(folder), "")
    assert run_script(folder, text)[1]["HF_TOKEN"] == 'it\'s $a `s` "secret"\nof two lines'


@pytest.mark.parametrize(
    ("name", "message"), [("MISSING", "No such file"), ("EMPTY", "the file of this secret is empty")]
)
def test_a_secret_that_is_missing_or_empty_ends_the_launch(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "EMPTY").write_text("\n")
    text = script.render_script("t", script.exec_lines(["true"]), [], [Secret(name, "/x")])
    text = text.replace(script.SECRETS_TARGET, str(tmp_path))
    done = subprocess.run(["/bin/bash", "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert message in done.stderr


def test_a_program_that_is_not_there_ends_with_127(tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text(script.render_script("t", script.exec_lines(["nosuchprogram"]), [], []))
    done = subprocess.run(["/bin/bash", str(tmp_path / "launch.sh")], capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert "nosuchprogram: not found" in done.stderr


@pytest.mark.parametrize("name", ["PPID", "UID", "EUID", "BASHOPTS", "SHELLOPTS", "BASH_ENV", "RANDOM", "SECONDS", "_"])
def test_a_variable_that_bash_would_change_is_refused(name: str) -> None:
    assert not is_variable(name)


def test_every_variable_that_bash_makes_itself_arrives_or_is_refused(folder: Path) -> None:
    made = subprocess.run(
        ["/bin/bash", "-c", "compgen -v"], env={}, capture_output=True, text=True, check=True
    ).stdout.split()
    env = {name: f"x {name}" for name in made if is_variable(name)}
    got = run_script(folder, script.render_script("t", script.exec_lines(program(folder)), env.items(), []))[1]
    assert {name: got.get(name) for name in env} == env


def test_the_script_is_readable() -> None:
    text = script.render_script(
        "rank 0 of x", script.exec_lines(["vllm", "serve", "/models/m", "--a", "b c", "--d"]), [("A", "1")], []
    )
    assert text.splitlines()[1] == "# rank 0 of x"
    assert text.endswith("  export A=1\n  exec -- vllm serve /models/m \\\n    --a 'b c' \\\n    --d\n}\n\nlaunch\n")
