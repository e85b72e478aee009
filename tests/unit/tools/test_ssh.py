"""Programs on another node by ssh and rsync: what they are sent, how much of their answer is taken, why they fail."""

import os
import signal
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.clock import unstalled
from tests.unit.tools.ssh_nodes import make_peer, write_program

from sparkd.base.host.docker_image import identity_of
from sparkd.base.lib.errors import BlockedError
from sparkd.tools.models.ssh import COMMAND_SECONDS, ProgramResult, SshHost, diagnose


@pytest.mark.parametrize(
    ("code", "trouble", "reason"),
    [
        (255, "No ED25519 host key is known for a\nHost key verification failed.\n", "its host key is not known here"),
        (255, "ann@a: Permission denied (publickey,password).\n", "it takes none of "),
        (255, "ssh: connect to host a port 22: Connection refused\n", "ssh: connect to host a port 22: Connection re"),
        (127, "bash: line 1: rsync: command not found\nrsync error: ... (code 12)\n", "it has no rsync"),
        (255, "kex_exchange_identification: read: Connection reset by peer\n", "its sshd hung up"),
        (127, "sh: 1: docker: not found\n", "it has no docker"),
        (1, "permission denied while trying to connect to the docker API\n", "its docker is not for this user"),
        (11, "rsync: write failed: No space left on device (28)\n", "its disk is full"),
        (23, 'rsync: mkdir "/srv/models" failed: Permission denied (13)\n', "this user may not write there"),
        (
            23,
            'rsync: [sender] send_files failed to open "/x/y": Permission denied (13)\n',
            "this user may not read all",
        ),
        (23, 'symlink has no referent: "/x/z"\nrsync error: ... (code 23)\n', "a link in it leads to nothing"),
        (1, "\x1b[31mevil\x1b[0m\n", "\\x1b[31mevil"),
        (-9, "", "it did not answer in time"),
        (3, "", "ended with 3"),
    ],
)
def test_a_failure_has_a_reason_of_its_own(code: int, trouble: str, reason: str) -> None:
    diagnosed, hint = diagnose(ProgramResult(code, "", trouble), "ann@a", "")
    assert diagnosed.startswith(reason)
    assert hint.isprintable()


def test_a_host_key_that_has_changed_is_forgotten_by_a_person_alone() -> None:
    """As of a machine that was replaced: until then `ssh` by hand fails, too."""
    banner = "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
    remedy = "if the machine was replaced: sudo ssh-keygen -R 10.0.0.2; then: sudo ssh ann@10.0.0.2"
    diagnosed = diagnose(ProgramResult(255, "", f"{banner}Host key verification failed.\n"), "ann@10.0.0.2", "", uid=0)
    assert diagnosed == ("its host key has changed", remedy)
    later = diagnose(ProgramResult(255, "", f"{banner}ann@10.0.0.2: Permission denied (publickey).\n"), "ann@a", "")
    assert "ssh keys" in later[0], "with StrictHostKeyChecking=no ssh continues"


@pytest.mark.parametrize(
    ("uid", "key", "host_hint", "key_hint"),
    [
        (1000, "", "ssh ann@a", "your ssh keys (ssh-copy-id ann@a; or else)"),
        (0, "id_ed25519.pub", "sudo ssh ann@a", "root's ssh keys (sudo ssh-copy-id ann@a; or else)"),
        (0, "", "sudo ssh ann@a", "root's ssh keys (sudo ssh-keygen -N '', then: sudo ssh-copy-id ann@a; or else)"),
    ],
)
def test_the_remedy_of_a_refused_login_is_for_the_user_who_runs_ssh(
    tmp_path: Path, uid: int, key: str, host_hint: str, key_hint: str
) -> None:
    """Under sudo that is root, with keys and known hosts of its own."""
    Tree(tmp_path).file(f"/.ssh/{key or 'known_hosts'}", "")
    host, login = (
        "{} ({})".format(*diagnose(ProgramResult(255, "", trouble), "ann@a", "else", uid=uid, root=tmp_path))
        for trouble in ("Host key verification failed.\n", "ann@a: Permission denied (publickey).\n")
    )
    assert host.endswith(f"(once by hand: {host_hint})")
    assert login == f"it takes none of {key_hint}"


@pytest.mark.parametrize(("login", "user"), [("ann@a", "ann"), ("10.0.0.2", '"$USER"')])
def test_a_docker_that_is_not_for_the_user_there_has_the_command_for_it(login: str, user: str) -> None:
    trouble = "permission denied while trying to connect to the docker API at unix:///var/run/docker.sock\n"
    assert diagnose(ProgramResult(1, "", trouble), login, "")[1] == f"there: sudo usermod -aG docker {user}"


def test_a_sparkd_there_says_what_to_do_itself() -> None:
    refused = "sparkd: the code is wrong\x1b[2J\nsparkd: or late\nhint: sudo sparkd init --invite on the head\n"
    expected = ("the code is wrong\\x1b[2J; or late", "there: sudo sparkd init --invite on the head")
    assert diagnose(ProgramResult(10, "", refused), "ann@a", "") == expected
    assert diagnose(ProgramResult(10, "", "sparkd: busy\n"), "ann@a", "") == ("busy", "")


def test_a_program_that_this_node_lacks_is_named_with_its_package(bin_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BlockedError, match=r"rsync is not on this node \(sudo apt install rsync\)"):
        SshHost("a").send(f"{tmp_path}/", "/x")
    with pytest.raises(BlockedError, match=r"ssh is not on this node \(sudo apt install openssh-client\)"):
        SshHost("a").run("true")


@pytest.mark.parametrize(
    ("trouble", "folder"),
    [
        ('rsync: [receiver] mkstemp "/home/ann/m/a b/.x.Zb3Qv1" failed: Permission denied (13)', "'/home/ann/m/a b'"),
        ('rsync: [Receiver] mkdir "/home/ann/m/sub" failed: Permission denied (13)', "/home/ann/m"),
        ('rsync: [generator] recv_generator: mkdir "/home/ann/m/sub" failed: Permission denied (13)', "/home/ann/m"),
        ('rsync: [generator] failed to set times on "/home/ann/m/.": Operation not permitted (1)', "/home/ann/m"),
    ],
)
def test_files_of_roots_in_the_folder_of_a_user_are_named_with_the_command(
    bin_folder: Path, trouble: str, folder: str
) -> None:
    write_program(bin_folder / "rsync", f"echo '{trouble}' >&2; exit 23")
    with pytest.raises(BlockedError) as caught:
        SshHost("a").send("/m/", "/home/ann/m", "--rsync-path=runuser -u ann -- rsync")
    assert caught.value.hint == f"there: sudo chown -hR ann: {folder}"
    with pytest.raises(BlockedError) as caught:
        SshHost("a").send("/m/", "/home/ann/m")
    assert "chown -hR ann" not in caught.value.hint


@pytest.mark.parametrize(("user", "owner"), [("", '"$USER"'), ("ann", "ann")])
def test_a_folder_that_the_user_there_may_not_make_has_the_command_that_makes_it(
    bin_folder: Path, user: str, owner: str
) -> None:
    """A Spark comes without /srv/models, and without a login for root."""
    trouble = 'rsync: [Receiver] mkdir "/srv/models/X" failed: Permission denied (13)'  # as rsync 3.2 to 3.5 say it
    write_program(bin_folder / "rsync", f"echo '{trouble}' >&2; exit 11")
    with pytest.raises(BlockedError, match="a: this user may not write to /srv/models/X") as caught:
        SshHost("a", user).send("/srv/models/X/", "/srv/models/X")
    command = f"sudo mkdir -p /srv/models/X && sudo chown -hR {owner} /srv/models/X"
    assert caught.value.hint == f"there: {command}; or --user root"


@pytest.mark.parametrize(
    "trouble",
    [
        'rsync: [sender] opendir "/home/ann/m/sub" failed: Permission denied (13)',
        'rsync: [sender] opendir "/x/[receiver] "/home/ann/m/sub" failed: Permission denied (13)',
        'rsync: [Receiver] mkdir "/home/ann/m" failed: Permission denied (13)',
        'rsync: [receiver] mkstemp "/home/ann/m2/x" failed: Permission denied (13)',
        'rsync: [receiver] mkstemp "/home/ann/m/../.ssh/x" failed: Permission denied (13)',
    ],
)
def test_no_folder_here_or_beside_the_models_is_said_to_be_given_away_there(bin_folder: Path, trouble: str) -> None:
    write_program(bin_folder / "rsync", f"echo '{trouble}' >&2; exit 23")
    with pytest.raises(BlockedError) as caught:
        SshHost("a").send("/home/ann/m/", "/home/ann/m", "--rsync-path=runuser -u ann -- rsync")
    assert "chown" not in str(caught.value)


def test_ssh_gets_one_word_for_the_other_side_and_no_prompt(bin_folder: Path) -> None:
    write_program(bin_folder / "ssh", 'for word; do echo "$word"; done')
    output = SshHost("10.0.0.1", "ann").run_checked("rm", "-f", "--", "a b;c")
    assert output.splitlines()[-5:] == ["-l", "ann", "--", "10.0.0.1", "rm -f -- 'a b;c'"]
    assert "BatchMode=yes" in output


def test_an_answer_without_end_is_cut(bin_folder: Path) -> None:
    write_program(bin_folder / "ssh", f"PATH={os.defpath} exec yes")
    ended = SshHost("a").run("true")
    assert ended.code == -9
    assert len(ended.answer) == 4 << 20


@pytest.mark.parametrize(("user", "through"), [(0, ""), (1000, "sudo -n ")])
def test_a_node_that_joins_by_ssh_gets_the_code_on_its_stdin_alone(bin_folder: Path, user: int, through: str) -> None:
    peer = make_peer(
        bin_folder, id=f"echo {user}", sudo='echo "sudo $1" && shift && exec "$@"', sparkd='echo "$*" && cat'
    )
    assert " ".join(peer.join("10.0.0.1-CODE").split()) == f"{through}init --yes --join 10.0.0.1-CODE"


def test_a_slow_login_is_not_taken_for_a_docker_that_hangs() -> None:
    class Slow(SshHost, frozen=True):
        def run(self, *words: str, seconds: float = COMMAND_SECONDS, stdin_text: str = "") -> ProgramResult:
            return (
                ProgramResult(0, '{"RootFS": {"Layers": []}, "Config": {}}', "")
                if seconds > 30
                else ProgramResult(-9, "", "")
            )

    assert identity_of(Slow("a").inspect_image("name:tag"), "name:tag")


def test_of_a_login_that_writes_without_end_the_last_lines_are_kept(bin_folder: Path) -> None:
    write_program(bin_folder / "ssh", "/usr/bin/yes x | /usr/bin/head -c 9000000 >&2; echo last >&2; exit 3")
    ended = SshHost("far").run("true")
    assert ended.code == 3
    assert len(ended.trouble) == 4096
    assert ended.trouble[-7:] == "x\nlast\n"


def test_a_process_that_a_login_leaves_behind_does_not_keep_the_caller(bin_folder: Path) -> None:
    """As ssh's ControlPersist, with stderr open."""
    write_program(bin_folder / "ssh", "/usr/bin/sleep 20 >&- & echo $! >&2; exit 3")
    begun = unstalled()
    ended = SshHost("far").run("true")
    seconds = unstalled() - begun
    os.kill(int(ended.trouble), signal.SIGKILL)
    assert ended.code == 3
    assert seconds < 5
