"""Who ended a rank from outside, by recorded lines of the killers, and by what users may write."""

import json
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.docker_server import STREAM, STREAM_END, chunk, dockerd

from sparkd.agent.engine.culprits import Culprit, find_culprit, find_signal
from sparkd.base.host import Host
from sparkd.base.host.journal import Line, Lines, Query
from sparkd.base.lib.dockerd.reader import DockerReader, connect

Reader = Callable[[Query, tuple[str, ...], float], Lines]

ID, NAME = "92dede9aa7833cc0db5d7f780a46f57f0b7d627a15d9d0dd6233cd03544542ec", "sparkd-rank1"
SCOPE = f"/system.slice/docker-{ID}.scope"
NOW = 1_764_000_100.0
AT = "2025-11-24T16:01:40+00:00"
PIDS = frozenset({411856, 77})

PRESSURE = "being 66.05% > 60.00% for > 20s with reclaim activity"
OOMD_UNITS = "systemd-oomd.service systemd-oomd.socket"
OOMD = f"Killed {SCOPE} due to memory pressure for /system.slice {PRESSURE}"
EARLYOOM = 'sending SIGTERM to process 411856 uid 0 "VLLM::Worker_TP": badness 1733, VmRSS 33010 MiB'
EARLYOOM_19 = EARLYOOM.replace("badness 1733", "oom_score 1733, oom_score_adj 0") + ', cmdline "VLLM::Worker_TP0"'
SUDO = "    milo : TTY=pts/0 ; PWD=/home/milo ; USER=root ; COMMAND=/usr/bin/kill -9 12 411856"
AUDIT = (
    "SYSCALL arch=c00000b7 syscall=129 success=yes exit=0 a0=648d0 a1=9 a2=0 a3=0 items=0 ppid=900 pid=901 auid=1000 "
    'uid=0 gid=0 euid=0 suid=0 fsuid=0 egid=0 sgid=0 fsgid=0 tty=pts0 ses=3 comm="kill" exe="/usr/bin/kill"'
)


def reader(*lines: str, anti_oom: tuple[str, ...] = ()) -> Reader:
    def read(query: Query, matches: tuple[str, ...], _seconds: float) -> Lines:
        assert query.since_us == (NOW - 120) * 1e6
        texts = anti_oom if "anti-oom" in matches[0] else lines
        return Lines(tuple(Line(round(NOW * 1e6) + 1000 * at, "i", 6, text) for at, text in enumerate(texts)))

    return read


def find(tree: Tree, *lines: str) -> Culprit:
    """Who ended the rank, by these lines of the journal."""
    return find_culprit(Host(tree.root), (ID, NAME), PIDS, NOW, reader(*lines))


@pytest.mark.parametrize(
    ("line", "text", "name"),
    [
        (OOMD, f"systemd-oomd ended its container at {AT} due to memory pressure", OOMD_UNITS),
        (
            f"Marked {SCOPE} for killing due to memory used (2) / total (2) and swap used (2) / total (2) being more",
            f"systemd-oomd ended its container at {AT} due to memory used",
            OOMD_UNITS,
        ),
        (EARLYOOM, f"earlyoom sent SIGTERM to its process 411856 at {AT}", "earlyoom"),
        (EARLYOOM_19, f"earlyoom sent SIGTERM to its process 411856 at {AT}", "earlyoom"),
        (SUDO, f"milo ended its process 12 411856 with sudo at {AT}", ""),
    ],
)
def test_a_killer_is_named_with_the_time(tree: Tree, line: str, text: str, name: str) -> None:
    hint = f"sudo systemctl disable --now {name}; the guard of sparkd watches memory too" if name else ""
    assert find(tree, "low memory! at or below SIGTERM limits", line) == (text, hint, "killed-from-outside")


def test_the_audit_names_a_process_but_is_no_proof(tree: Tree) -> None:
    """Its number is of the caller's PID namespace, which a user may choose."""
    text = f"the kernel's audit has process 901 of login uid 1000, which sent a signal to a process 0x648d0 at {AT}"
    assert find(tree, AUDIT) == (text, "", None)


def test_of_sudo_only_what_it_logs_is_read(tree: Tree) -> None:
    """Any user has it print a line: systemd-cat sudo -S -p LINE true, and journald takes that for sudo's, as stdout."""
    queries = []

    def read(_query: Query, matches: tuple[str, ...], _seconds: float) -> Lines:
        queries.append(matches)
        return Lines(())

    find_culprit(Host(tree.root), (ID, NAME), PIDS, NOW, read)
    assert queries == [
        (
            *("_SYSTEMD_UNIT=systemd-oomd.service", "+"),
            *("_SYSTEMD_UNIT=earlyoom.service", "+"),
            *("_EXE=/usr/bin/sudo", "_TRANSPORT=syslog", "+"),
            *("_TRANSPORT=audit", "_AUDIT_TYPE=1300"),
        )
    ]


USERS_EARLYOOM = (
    'sending SIGTERM to process 9 uid 0 "VLLM::Worker_TP": oom_score 1733, oom_score_adj 0, VmRSS 33010 MiB, cmdline "'
)
"""Its victim is a user's process, whose command line continues like another line."""
KILL_IN_FOLDER_NAME = (
    "    milo : TTY=pts/0 ; PWD=/x ; USER=root ; COMMAND=/usr/bin/kill -9 411856 ; USER=root ; "
    "COMMAND=/usr/bin/kill 1 411856"
)


@pytest.mark.parametrize(
    "lines",
    [
        *(
            pytest.param((SUDO.replace("-9", option),), id=f"kill {option} ends nobody")
            for option in ("-0", "-CONT", "-s USR1", "-s 0", "-l")
        ),
        pytest.param((AUDIT.replace("a1=9", "a1=0"),), id="signal 0 ends nobody"),
        pytest.param((AUDIT.replace("a1=9", "a1=12"),), id="signal 18 ends nobody"),
        pytest.param((AUDIT.replace("auid=1000", "auid=4294967295"),), id="runc's signal for docker stop"),
        pytest.param((AUDIT.replace("arch=c00000b7", "arch=c000003e"),), id="this number is no kill on x86"),
        pytest.param(
            (OOMD.replace("/system.slice/docker", "/user.slice/user-1000.slice/user@1000.service/docker", 1),),
            id="a user's own scope",
        ),
        pytest.param((f"Considered 1 cgroups for killing: {OOMD}",), id="oomd considered it"),
        pytest.param((EARLYOOM.replace("411856", "411857"),), id="earlyoom ended another process"),
        pytest.param((f"{USERS_EARLYOOM}x", EARLYOOM), id="a line that a command line forges"),
        pytest.param((f'{USERS_EARLYOOM}x"', "filler", OOMD), id="a line that a command line forges two lines later"),
        pytest.param((SUDO.replace("milo : ", "milo : command not allowed ; "),), id="sudo refused the command"),
        pytest.param((SUDO.replace("milo : ", "milo : 3 incorrect password attempts ; "),), id="sudo got no password"),
        pytest.param((KILL_IN_FOLDER_NAME,), id="a kill in a folder's name"),
        pytest.param(
            (SUDO.replace("COMMAND=/usr", "COMMAND=/usr/bin/echo /usr"),), id="an argument of another command"
        ),
        pytest.param((f"milo: {SUDO}",), id="text before sudo's"),
        pytest.param((AUDIT.replace("a0=648d0", "a0=648d1"),), id="the audit has another process"),
        pytest.param((AUDIT.replace("syscall=129", "syscall=101"),), id="another system call"),
    ],
)
def test_a_line_that_proves_nothing_names_nobody(tree: Tree, lines: tuple[str, ...]) -> None:
    culprit = find(tree, *lines)
    assert culprit.cause is None
    assert culprit.text == "neither the journal nor dockerd's events say who it was"
    assert culprit.hint.startswith("to have the next one named: sudo apt install auditd && sudo auditctl ")


def test_a_journal_that_cannot_be_read_is_named(tree: Tree) -> None:
    def read(*_: object) -> Lines:
        raise OSError("journalctl found nothing in 2.5 s, and was ended")

    culprit = find_culprit(Host(tree.root), (ID, NAME), PIDS, NOW, read)
    assert culprit.text.endswith("say who it was; journalctl found nothing in 2.5 s, and was ended")


def event(action: str, **attributes: str) -> bytes:
    attributes = {"image": "vllm", "io.sparkd.role": "worker", "name": NAME, **attributes}
    recorded = {
        "status": action, "id": ID, "from": "vllm", "Type": "container", "Action": action,
        "Actor": {"ID": ID, "Attributes": attributes}, "scope": "local",
        "time": round(NOW), "timeNano": round(NOW * 1e9),
    }  # fmt: skip
    return json.dumps(recorded).encode() + b"\n"


STOP = (event("kill", signal="15"), event("kill", signal="9"), event("die", exitCode="137"), event("stop"))


@pytest.mark.parametrize(
    ("events", "signal", "what", "cause"),
    [
        (STOP, 15, "stop", "engine-stopped"),
        ((event("kill", signal="2"), *STOP[2:]), 2, "stop", "engine-stopped"),
        ((event("kill", signal="1"), *STOP[1:3]), 9, "kill", "killed-from-outside"),
    ],
)
def test_dockers_events_differ_for_a_stop_and_a_kill(
    events: tuple[bytes, ...], signal: int, what: str, cause: str
) -> None:
    requests = []

    def answer(request: str) -> Iterable[bytes]:
        requests.append(request)
        return (STREAM, *map(chunk, events), STREAM_END)

    with dockerd(answer) as path, closing(connect(path)) as docker:
        culprit = find_signal(docker.events(ID, 10, 20))
    text = f"dockerd sent signal {signal} at {AT}, as by docker {what}; its events do not name the client"
    assert culprit == (text, "", cause)
    assert "since=10.000000&until=20.000000" in requests[0]
    assert ID in requests[0]


@pytest.mark.parametrize("events", [None, {}, [], ["x"], [{"Action": "kill"}], [{"Action": "die", "time": 1}]])
def test_events_without_a_signal_name_nobody(events: object) -> None:
    assert find_signal(events) is None


class HostWithDocker(Host):
    """A tree of files, beside a dockerd that listens at `socket_path`."""

    def __init__(self, root: Path, socket_path: str) -> None:
        super().__init__(root)
        self._socket_path = socket_path

    def docker_reader(self) -> DockerReader:
        return connect(self._socket_path)


@pytest.mark.parametrize(
    ("line", "named"),
    [(f"MemAvailable 2.9 GB below 3 GB: killing {NAME}", True), (f"killed {ID[:12]}", True), ("killing comfy", False)],
)
def test_an_ending_by_dgx_anti_oom_is_named(tree: Tree, line: str, named: bool) -> None:
    tree.dockerd()
    with dockerd(lambda _: (STREAM, chunk(STOP[1]), STREAM_END)) as path:
        culprit = find_culprit(HostWithDocker(tree.root, path), (ID, NAME), PIDS, NOW, reader(anti_oom=(line,)))
    assert culprit.text.startswith("dockerd sent signal 9")
    assert culprit.text.endswith(": dgx-anti-oom") is named
    assert ("systemctl disable --now dgx-anti-oom" in culprit.hint) is named
    assert culprit.cause == "killed-from-outside"


def test_a_dockerd_that_fails_is_named(tree: Tree) -> None:
    tree.dockerd()
    tree.docker("/events", {}, fails=True)
    assert find(tree).text.startswith("neither the journal nor dockerd's events say who it was; GET /events: ")
