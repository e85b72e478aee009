"""Output that can't be written: a line says why, and one what shows it, and a reader that leaves is no error."""

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.commands import INTERRUPTIBLE, needs_no_agent, sparkd
from tests.unit.nodes import until

from sparkd.base.lib.errors import ConfigError, ExitCode
from sparkd.base.lib.text_file import read_file
from sparkd.tools.cli.status import WATCH_SECONDS

ROOT = Path(__file__).parents[3]
SITE = str(Path(pytest.__file__).parents[1])
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may build an image")
SPARKD = str(Path(sys.executable).parent / "sparkd")
COMMANDS = ("--help", "recipe schema", "status")


def ran(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_reported_with_what_shows_it(command: str) -> None:
    done = ran(f"{SPARKD} {command} >/dev/full")
    assert (done.returncode, done.stderr) == (1, "sparkd: no space left on device\nhint: df -h\n")


def test_an_error_of_the_system_is_an_object_where_json_is_wanted() -> None:
    done = ran(f"{SPARKD} explain --json 0>/dev/null; {SPARKD} explain --json <<<x >/dev/full")
    error = json.loads(done.stdout)["error"]
    assert (error["code"], error["cause"], error["reason"]) == (1, "system-error", "bad file descriptor")
    assert done.stderr == "sparkd: bad file descriptor\nsparkd: no space left on device\nhint: df -h\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [("--help", 0), ("recipe schema", 0), pytest.param("status", ExitCode.DOWN, marks=needs_no_agent)],
)
def test_a_reader_that_leaves_and_a_closed_output_are_no_errors(command: str, code: int) -> None:
    done = ran(f"{SPARKD} {command} | true; echo ${{PIPESTATUS[0]}}")
    assert int(done.stdout) in (0, code)
    assert done.stderr == ""
    done = ran(f"{SPARKD} {command} >&- <&-")
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("preflight --dry-run", 0),
        pytest.param("image build deepseek-v4-flash-built", 141, marks=needs_root),
        ("recipe list", 0),
        ("help image", 0),
    ],
)
def test_a_reader_that_leaves_cuts_the_work_of_a_command_short(words: str, code: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "sparkd.tools.cli.main", *words.split()]
    with os.fdopen(writing) as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (code, "")


def test_a_reader_that_leaves_hides_no_error_of_the_command() -> None:
    done = ran(f"{SPARKD} recipe check tiny-cpu none-such | true; echo ${{PIPESTATUS[0]}}")
    assert (done.stdout, "no recipe none-such" in done.stderr) == (f"{ExitCode.CONFIG:d}\n", True)


@pytest.mark.parametrize("errors", ["2>&1 | true", "2>/dev/full | true"])
def test_an_error_that_can_not_be_written_has_its_exit_code(errors: str) -> None:
    done = ran(f"{SPARKD} recipe check none-such {errors}; echo ${{PIPESTATUS[0]}}")
    assert done.stdout == f"{ExitCode.CONFIG:d}\n"


@pytest.mark.parametrize(("command", "code"), [("recipe import -", 78), ("init", 2), ("recipe import - --write", 2)])
def test_closed_input_is_as_an_empty_one_and_closed_errors_hide_none(command: str, code: int) -> None:
    closed, empty = ran(f"{SPARKD} {command} <&-"), ran(f"{SPARKD} {command} </dev/null")
    assert (closed.returncode, closed.stderr) == (empty.returncode, empty.stderr)
    assert closed.returncode == code
    assert ran(f"{SPARKD} {command} 2>&- </dev/null").returncode == code


def test_a_command_whose_errors_are_closed_fails_with_its_own_code() -> None:
    assert ran(f"{SPARKD} recipe show none-such 2>&- </dev/null").returncode == ExitCode.CONFIG


@needs_no_agent  # its report has durations, which change
def test_watch_without_a_terminal_prints_only_what_has_changed() -> None:
    command = [*INTERRUPTIBLE, SPARKD, "status", "--watch"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("next: " in line for line in process.stdout)
        time.sleep(2.5 * WATCH_SECONDS)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[0] == "", "two more intervals"
    assert process.returncode == -signal.SIGTERM


HANGS = """
import ctypes, os, sys, threading
from sparkd.tools.cli.main import end_where_it_hangs
threading.Thread(target=end_where_it_hangs, args=(1,), daemon=True).start()
libc, pid, actions = ctypes.CDLL(None), ctypes.c_int(), ctypes.create_string_buffer(1024)
libc.posix_spawn_file_actions_init(actions)
libc.posix_spawn_file_actions_addopen(actions, 0, sys.argv[1].encode(), os.O_RDONLY, 0)
print("hangs", flush=True)
libc.posix_spawn(ctypes.byref(pid), b"/bin/true", actions, None, (ctypes.c_char_p * 2)(b"true"), None)
"""


def test_ctrl_c_ends_a_command_that_hangs_in_the_kernel(tmp_path: Path) -> None:
    """As at a file server that is gone: there the kernel wakes a process only to kill it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = [*INTERRUPTIBLE, sys.executable, "-c", HANGS, str(fifo)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "hangs\n"
        until(lambda: "State:\tD" in Path(f"/proc/{process.pid}/status").read_text(), 60)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        os.close(os.open(fifo, os.O_WRONLY))  # its child, which waits for this, ends


AS_A_USER = """
import os, sys
import sparkd.tools.cli.logs, sparkd.tools.cli.setup, sparkd.tools.cli.switching, sparkd.tools.cli.tune_recipe
os.geteuid() or os.seteuid(65534)
from sparkd.tools.cli.main import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "words",
    [
        ("use", "/my recipes/x.yaml"),
        ("tune-recipe", "it's", "--knob", "a=$(b)..2"),
        ("rollback", "--end"),  # without its option it would go back, not end that
        ("tune", "apply", "--watchdog"),
        ("logs", "--since", "2d"),
    ],
)
def test_the_same_command_as_root_can_be_pasted(words: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-c", AS_A_USER, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    hint = done.stderr.partition("hint: ")[2]
    assert shlex.split(hint) == ["sudo", "sparkd", *words]


def test_a_file_that_only_root_may_read_is_named_with_what_helps(tmp_path: Path) -> None:
    config, user = tmp_path / "sparkd.toml", os.geteuid()
    config.touch(0)
    os.seteuid(user or 65534)
    try:
        with pytest.raises(ConfigError, match="cannot be read: permission denied; try sudo"):
            read_file(config)
    finally:
        os.seteuid(user)


@pytest.mark.skipif(os.geteuid() != 0, reason="is about root")
def test_root_who_may_not_read_a_file_is_not_sent_to_sudo(tmp_path: Path) -> None:
    """As on a share that takes root for nobody."""
    config = tmp_path / "sparkd.toml"
    config.touch(0o600)
    os.chown(config, 65534, 65534)
    without = "setpriv --bounding-set=-all --inh-caps=-all"
    done = ran(f"SPARKD_CONFIG={config} {without} {SPARKD} config show")
    assert done.stderr.splitlines()[0] == f"sparkd: {config}: cannot be read: permission denied"


@pytest.mark.parametrize(
    ("command", "pasted", "announced", "shown"),
    [
        ("explain", "CUDA out of memory", "paste a log, then press Ctrl-D\n", "means: "),
        (
            "recipe import -",
            "docker run vllm/vllm-openai:v0.33.0 --model org/m",
            "paste it, then press Ctrl-D\n",
            "org/m",
        ),
    ],
)
def test_what_waits_for_a_paste_on_a_terminal_says_so(command: str, pasted: str, announced: str, shown: str) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, f"{pasted}\n\x04".encode())
    words = [SPARKD, *command.split()]
    done = subprocess.run(words, stdin=theirs, capture_output=True, text=True, check=False, timeout=60)
    os.close(ours)
    os.close(theirs)
    assert (announced in done.stderr, shown in done.stdout) == (True, True), done


def launcher(folder: Path, app: Path) -> str:
    """The package's /usr/bin/sparkd for a program in `app`."""
    path, text = folder / "sparkd-launcher", (ROOT / "packaging/debian/launcher").read_text()
    path.write_text(text.replace("/usr/lib/sparkd/app", str(app)).replace("/usr/lib/sparkd/vendor", SITE))
    return str(path)


@pytest.mark.parametrize(
    ("env", "wanted"), [("--default-signal=INT", (-signal.SIGINT, "")), ("--ignore-signal=INT", (0, "ran\n"))]
)
def test_an_interrupt_while_the_program_is_imported_ends_it_without_a_traceback(
    env: str, wanted: tuple[int, str], tmp_path: Path
) -> None:
    package = tmp_path / "sparkd/tools/cli"
    package.mkdir(parents=True)
    importing = "import os\nos.kill(os.getpid(), 2)\nfor _ in range(9999): pass\n"
    (package / "main.py").write_text(f"{importing}def main() -> int:\n    print('ran')\n    return 0\n")
    words = ["env", env, sys.executable, "-IBS", launcher(tmp_path, tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (*wanted, "")


def test_an_interrupt_of_a_command_is_its_own_to_handle(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    words = [*INTERRUPTIBLE, sys.executable, "-IBS", launcher(tmp_path, ROOT / "src"), "explain"]
    with subprocess.Popen(words, stdin=theirs, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("paste a log")
        process.send_signal(signal.SIGINT)
        assert (process.wait(60), process.stderr.read()) == (130, "")
    os.close(ours)
    os.close(theirs)


HOSTILE = """\
schema: 1
name: hostile
model: {path: "m"}
image: {ref: "i:1"}
args: {max-model-len: 100}
env: {A: "\\e[2Kx", B: "\\u009b2Ky"}
"""


@pytest.mark.parametrize("command", ["plan", "recipe check", "recipe show"])
def test_what_a_recipe_holds_never_moves_the_cursor(tmp_path: Path, command: str) -> None:
    (tmp_path / "sparkd.toml").write_text(f'[engine]\nrecipe = "{tmp_path}/hostile.yaml"\n')
    (tmp_path / "hostile.yaml").write_text(HOSTILE)
    words = command.split() + ([] if command == "plan" else [f"{tmp_path}/hostile.yaml"])
    done = sparkd(*words, config=tmp_path / "sparkd.toml")
    assert done.stdout
    assert not {"\x1b", "\x9b"} & {*done.stdout, *done.stderr}


def test_the_name_of_a_file_never_moves_the_cursor(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2K.yaml").symlink_to("/none")
    done = sparkd("recipe", "import", str(tmp_path))
    assert ".yaml: is a link to a file that does not exist" in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("letter", ["\x1b", "\x9b", "\u202e"])
def test_a_path_in_a_recipe_has_no_letter_that_a_terminal_obeys(tmp_path: Path, letter: str) -> None:
    (tmp_path / "q.yaml").write_text(HOSTILE.replace('"m"', f'"/m{letter.encode("unicode_escape").decode()}"'))
    done = sparkd("recipe", "check", f"{tmp_path}/q.yaml")
    assert (done.returncode, "nothing unprintable" in done.stderr) == (78, True), done
