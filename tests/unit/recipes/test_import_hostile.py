"""A hostile form of each kind: the import runs nothing of it, connects to nothing, and writes the recipe alone."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.unit.started_engines import COMPOSE, IMAGE, SECRET, UNIT

from sparkd.tools.importers.docker_line import read_script
from sparkd.tools.importers.options import LineError
from sparkd.tools.importers.variables import Variables

REPOSITORY = Path(__file__).parents[3]
TRAP = "touch RAN"
OPTIONS = (
    f"--name '../../RAN' --label 'x=$({TRAP})' --label $'\\e[2J' -e A=\"$({TRAP})\" -e B=`{TRAP}` -e HF_TOKEN={SECRET} "
    f'-e C=$A_TOKEN -v "$({TRAP})":/x -v ../../../../../../etc:/e -v /:/host --env-file /etc/shadow --entrypoint sh'
)
LINE = f"docker run {OPTIONS} {IMAGE} -c '{TRAP}; eval {TRAP}; exec vllm serve ../../../RAN; {TRAP}'\n"
SCRIPT = f"""\
#!/bin/sh -c '{TRAP}'
PROMPT_COMMAND='{TRAP}' BASH_ENV=./trap.sh PATH=.:$PATH
trap '{TRAP}' EXIT DEBUG
. ./trap.sh; . ./pipe; . ../../../../../../etc/shadow
source "$({TRAP})"; source <({TRAP})
curl() {{ {TRAP}; }}
x=$({TRAP}); : ${{y:=$({TRAP})}} <(touch RAN) >RAN 2>>./RAN
cat > RAN <<END
$({TRAP})
END
{TRAP} && python3 -c 'open("RAN", "w")'
{LINE}"""
EVIL_COMPOSE = f"""\
include: [{{path: ../other.yaml}}]
{COMPOSE.replace("--model org/m", f"['--model', '../../../RAN', '--seed', '$$({TRAP})']")}\
    build: {{context: "https://example.invalid/x.git", dockerfile_inline: "RUN {TRAP}"}}
    env_file: [../../../../../../etc/shadow, "$({TRAP})"]
    environment: {{A: "`{TRAP}`", B: "${{C:-$({TRAP})}}", HF_TOKEN: {SECRET}}}
    labels: {{"$({TRAP})": "\\e[2J"}}
    container_name: ../../RAN
    volumes: ["/:/host", "./$({TRAP}):/x", "../../../../../../root/.ssh:/keys"]
    healthcheck: {{test: "{TRAP}"}}
    post_start: [{{command: {TRAP}}}]
    develop: {{watch: [{{action: sync+exec, path: ., target: /x, exec: {{command: {TRAP}}}}}]}}
    secrets: [s]
secrets: {{s: {{file: /etc/shadow}}}}
configs: {{c: {{environment: HOME}}}}
"""
EVIL_UNIT = f"""\
{UNIT}EnvironmentFile=/etc/shadow
Environment=HF_TOKEN={SECRET} LD_PRELOAD=./trap.so
ExecCondition=/bin/sh -c '{TRAP}'
ExecStartPre=+/bin/sh -c '{TRAP}'
ExecStartPost=/bin/sh -c '{TRAP}'
ExecReload=/bin/sh -c '{TRAP}'
ExecStart=!/usr/bin/docker run -e A -e "B=$({TRAP})" {IMAGE} --model ../../../RAN --seed 1
"""
FORMS = {"line.txt": LINE, "script.sh": SCRIPT, "compose.yaml": EVIL_COMPOSE, "evil.service": EVIL_UNIT}


def audited(folder: Path, *arguments: str) -> tuple[int, str, list[str]]:
    """Exit code, output, and what the audit hook reports."""
    report = folder.parents[2] / "offences"
    done = subprocess.run(
        [sys.executable, "-B", "-m", "tests.unit.audited", str(report), "recipe", "import", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{REPOSITORY}/src:{REPOSITORY}", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr, report.read_text().splitlines()


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_ino) for path in sorted(folder.rglob("*"))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With programs that a form could have run, or files it could have read."""
    below = tmp_path / "a/b/c"
    below.mkdir(parents=True)
    for name in ("trap.sh", "curl", "docker", "vllm"):
        (below / name).write_text(f"#!/bin/sh\n{TRAP}\n")
        (below / name).chmod(0o755)
    (below / "trap.sh").write_text(f"{TRAP}\nA_TOKEN={SECRET}\n$({TRAP})\n")
    os.mkfifo(below / "pipe")
    (below / ".env").write_text(f"D=$({TRAP})\nE=`{TRAP}`\nF='\\e[2J'\n")
    for name, text in FORMS.items():
        (below / name).write_text(text)
    return below


@pytest.mark.parametrize("name", FORMS)
def test_nothing_of_a_hostile_form_is_run_and_nothing_is_written(name: str, folder: Path) -> None:
    before = tree(folder.parents[1])
    code, output, offences = audited(folder, name)
    assert (code, offences) == (10, []), output  # read to its end, and no way to an endpoint
    assert tree(folder.parents[1]) == before
    assert SECRET not in output
    assert output.replace("\n", "").isprintable()


@pytest.mark.parametrize("name", FORMS)
def test_of_a_hostile_form_the_recipe_alone_is_written(name: str, folder: Path) -> None:
    out = folder / "out"
    out.mkdir()
    before = tree(folder.parents[1])
    code, output, _ = audited(folder, name, "--write", str(out))
    after = tree(folder.parents[1])
    assert before.keys() <= after.keys()
    changed = {path for path in after if after[path] != before.get(path)} - {str(out)}
    assert (code, changed) == (10, {f"{out}/ran.yaml"}), output


@pytest.mark.parametrize(
    "line",
    ['p&&A+=" y"\n', "{ ", ": ${A:=1}\n", "unset A\n", '[ -z "$A" ]&&A=1\n', "A=1 | x\n", "read A\n", "((", "((A))\n",
     "((A ", "[[ (a|b) ]]\n", "$A run\n", "docker -c ", "A=$((1+(2)+(3)*(4)))\n", "cd a/b/c/d/e/f/g\n",
     ],
)  # fmt: skip
def test_a_script_of_one_line_many_times_is_read_in_seconds(line: str) -> None:
    """1 MB takes up to 3.7 s of CPU on one machine, twice as long where another program uses its core, too. Where each
    line copied what the ones before it had made, it took 27 to 33 s.

    Half as much shows it, except of the line that appends, whose reading is bounded: it takes 60 ms.
    """
    size = 1_000_000 if "+=" in line else 500_000
    short_seconds, seconds = _read_repeated(line, size // 8), _read_repeated(line, size)
    assert seconds < 12e-6 * size
    assert seconds < 14 * short_seconds + 0.1, "eight times as much takes eight times as long"


@pytest.mark.parametrize(
    "line", ["B=x\nA=" + "$B" * 50_000, "A=$(cd $(dirname " + "(" * 120_000 + ")" * 120_001 + "x)"],
    ids=["assignment", "parentheses"],
)  # fmt: skip
def test_a_long_line_is_read_in_seconds(line: str) -> None:
    assert _read_repeated(f"{line}\n", 500_000) < 6


def _read_repeated(line: str, size: int) -> float:
    """Seconds of CPU."""
    began = time.thread_time()
    with suppress(LineError):
        read_script(line * (size // len(line)), Variables({}, frozenset()))
    return time.thread_time() - began
