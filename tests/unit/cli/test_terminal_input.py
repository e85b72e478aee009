"""A command at a terminal says what it waits for, and an interrupt ends it without a traceback."""

import io
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.commands import INTERRUPTIBLE, SPARKD, stdin_of
from tests.unit.nodes import until

from sparkd.base.lib.errors import UsageError
from sparkd.tools.cli.console import prompt

ROOT = Path(__file__).parents[3]
SITE = str(Path(pytest.__file__).parents[1])


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
    assert announced in done.stderr
    assert shown in done.stdout


def test_a_long_line_that_a_person_types_is_read_to_its_end() -> None:
    url = f"https://example.org/{'x' * 1000}"
    with stdin_of(io.StringIO(f"{url}\nn\n")):
        assert [prompt("URL: "), prompt("write it? ")] == [f"{url}\n", "n\n"]


def test_an_answer_that_is_no_text_is_an_error_and_no_bug() -> None:
    strict = io.TextIOWrapper(io.BytesIO(b"\xfc\n"), encoding="utf-8")  # as in each locale but C
    with stdin_of(strict), pytest.raises(UsageError, match="the answer is no text"):
        prompt("write it? ")


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
        assert process.wait(60) == 130
        assert process.stderr.read() == ""
    os.close(ours)
    os.close(theirs)


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


def hangs(pid: int) -> bool:
    return "State:\tD" in Path(f"/proc/{pid}/status").read_text()


def is_watched(pid: int) -> bool:
    """Whether a thread of the process blocks what ends a command, and nothing else."""
    return any("SigBlk:\t0000000000006003\n" in task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/status"))


def test_ctrl_c_ends_a_command_that_hangs_in_the_kernel(tmp_path: Path) -> None:
    """As at a file server that is gone: there the kernel wakes a process only to kill it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = [*INTERRUPTIBLE, sys.executable, "-c", HANGS, str(fifo)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "hangs\n"
        try:
            until(lambda: hangs(process.pid) and is_watched(process.pid), 60)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
            os.close(os.open(fifo, os.O_RDWR))  # its child, which waits for this, ends


HOLDS = """
import os, signal, sys, threading, time
from pathlib import Path
from sparkd.tools.cli.main import end_where_it_hangs
from sparkd.tools.measure.interrupts import hold_signals
number = int(sys.argv[1])
signal.signal(number, signal.default_int_handler)
thread = threading.Thread(target=end_where_it_hangs, daemon=True)
thread.start()
while "SigBlk:\\t0000000000000000\\n" in Path(f"/proc/self/task/{thread.native_id}/status").read_text():
    time.sleep(0.01)
with hold_signals():
    os.kill(os.getpid(), number)
    time.sleep(0.2)
    print("held", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM])
def test_a_signal_that_is_held_back_reaches_no_other_thread_of_a_command(number: signal.Signals) -> None:
    command = [*INTERRUPTIBLE, sys.executable, "-c", HOLDS, str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "held\n"
    assert done.stderr.endswith("KeyboardInterrupt\n")
