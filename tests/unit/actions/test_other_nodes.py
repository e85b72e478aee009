"""The targets of a copy, and the reasons of failures there."""

import argparse
import json
import os
import signal
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest
from msgspec import structs
from tests.tree import Tree
from tests.unit.clock import unstalled

from sparkd.agent.actions.dockerd import lock_scratch
from sparkd.base.config import Settings
from sparkd.base.config.settings import Cluster
from sparkd.base.host import Host
from sparkd.base.host.docker_image import identity_of
from sparkd.base.lib.errors import BlockedError, ExitCode, UsageError
from sparkd.tools.cli import main
from sparkd.tools.cli.parser import add_targets
from sparkd.tools.models import image_copy, peers
from sparkd.tools.models.image_copy import SCRATCH
from sparkd.tools.models.image_store import ImageSizes
from sparkd.tools.models.model_files import send_model
from sparkd.tools.models.ssh import COMMAND_SECONDS, ProgramResult, SshHost, diagnose

NODES = Settings(cluster=Cluster(nodes=("10.0.0.1", "10.0.0.2", "10.0.0.3")))


@pytest.fixture
def second(tmp_path: Path) -> Host:
    """The machine that owns 10.0.0.2."""
    tree = Tree(tmp_path / "machine")
    tree.file("/proc/net/fib_trie", "Local:\n  |-- 10.0.0.2\n     /32 host LOCAL\n")
    return Host(tree.root)


def parse_arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_targets(parser)
    parser.add_argument("model", nargs="*")
    return parser.parse_args(words)


def choose_peers(args: argparse.Namespace, settings: Settings, host: Host) -> tuple[SshHost, ...]:
    return peers.choose_peers(args.to, args.user, settings, host)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), (SshHost("10.0.0.1"), SshHost("10.0.0.3"))),
        (("--user", "ann"), (SshHost("10.0.0.1", "ann"), SshHost("10.0.0.3", "ann"))),
        (("--to", "spark_3", "--to", "fe80::1%eth0", "--to", "spark_3"), (SshHost("spark_3"), SshHost("fe80::1%eth0"))),
    ],
)
def test_a_copy_goes_to_every_other_node_or_to_those_that_are_named(
    second: Host, words: tuple[str, ...], expected: tuple[SshHost, ...]
) -> None:
    assert choose_peers(parse_arguments(*words), NODES, second) == expected


@pytest.mark.parametrize(
    "words", [("--to=-oProxyCommand=x",), ("--to=a b",), ("--to=a;b",), ("--user=-x",), ("--user=a b",), ("--to=",)]
)
def test_what_ssh_would_read_as_more_than_a_name_is_refused(second: Host, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        choose_peers(parse_arguments(*words), NODES, second)


def test_what_is_copied_is_never_taken_for_one_more_node() -> None:
    assert parse_arguments("--to", "spark3", "My-Model").model == ["My-Model"]


def test_nothing_is_copied_onto_itself(second: Host) -> None:
    with pytest.raises(UsageError, match=r"10\.0\.0\.2 is this node itself"):
        choose_peers(parse_arguments("--to", "10.0.0.3", "--to", "10.0.0.2"), NODES, second)


def test_a_node_alone_has_nobody_to_copy_to(second: Host) -> None:
    with pytest.raises(UsageError, match="names no other node"):
        choose_peers(parse_arguments(), Settings(), second)


def test_what_fails_on_one_node_does_not_keep_the_others_from_theirs(capsys: pytest.CaptureFixture[str]) -> None:
    served = []

    def act(peer: SshHost) -> None:
        if peer.address == "a":
            raise BlockedError("a: its disk is full")
        served.append(peer.address)

    assert peers.run_on_each((SshHost("a"), SshHost("b")), act) is ExitCode.BLOCKED
    assert served == ["b"]
    assert capsys.readouterr().err == "sparkd: a: its disk is full\n"


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
    found, hint = diagnose(ProgramResult(code, "", trouble), "ann@a", "")
    assert found.startswith(reason)
    assert hint.isprintable()


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


def test_a_sparkd_there_says_what_to_do_itself() -> None:
    refused = "sparkd: the code is wrong\x1b[2J\nsparkd: or late\nhint: sudo sparkd init --invite on the head\n"
    expected = ("the code is wrong\\x1b[2J; or late", "there: sudo sparkd init --invite on the head")
    assert diagnose(ProgramResult(10, "", refused), "ann@a", "") == expected
    assert diagnose(ProgramResult(10, "", "sparkd: busy\n"), "ann@a", "") == ("busy", "")


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that PATH has."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_a_program_that_this_node_lacks_is_named_with_its_package(programs: Path, tmp_path: Path) -> None:
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
    programs: Path, trouble: str, folder: str
) -> None:
    program(programs / "rsync", f"echo '{trouble}' >&2; exit 23")
    with pytest.raises(BlockedError) as caught:
        SshHost("a").send("/m/", "/home/ann/m", "--rsync-path=runuser -u ann -- rsync")
    assert caught.value.hint == f"there: sudo chown -hR ann: {folder}"
    with pytest.raises(BlockedError) as caught:
        SshHost("a").send("/m/", "/home/ann/m")
    assert "chown" not in caught.value.hint


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
def test_no_folder_here_or_beside_the_models_is_said_to_be_given_away_there(programs: Path, trouble: str) -> None:
    program(programs / "rsync", f"echo '{trouble}' >&2; exit 23")
    with pytest.raises(BlockedError) as caught:
        SshHost("a").send("/home/ann/m/", "/home/ann/m", "--rsync-path=runuser -u ann -- rsync")
    assert "chown" not in str(caught.value)


def test_ssh_gets_one_word_for_the_other_side_and_no_prompt(programs: Path) -> None:
    program(programs / "ssh", 'for word; do echo "$word"; done')
    output = SshHost("10.0.0.1", "ann").run_checked("rm", "-f", "--", "a b;c")
    assert output.splitlines()[-5:] == ["-l", "ann", "--", "10.0.0.1", "rm -f -- 'a b;c'"]
    assert "BatchMode=yes" in output


def test_an_answer_without_end_is_cut(programs: Path) -> None:
    program(programs / "ssh", f"PATH={os.defpath} exec yes")
    ended = SshHost("a").run("true")
    assert ended.code == -9
    assert len(ended.answer) == 4 << 20


def far(programs: Path, **scripts: str) -> SshHost:
    """A node whose shell is this one's, in a home of its own, with programs of its own."""
    home = programs.parent / "far"
    (home / SCRATCH).mkdir(parents=True)
    program(programs / "ssh", f'PATH={home}:{os.defpath}; cd {home}; for last; do :; done; eval "$last"')
    for name, text in scripts.items():
        program(home / name, text)
    return SshHost("far")


@pytest.mark.parametrize(("user", "through"), [(0, ""), (1000, "sudo -n ")])
def test_a_node_that_joins_by_ssh_gets_the_code_on_its_stdin_alone(programs: Path, user: int, through: str) -> None:
    peer = far(programs, id=f"echo {user}", sudo='echo "sudo $1" && shift && exec "$@"', sparkd='echo "$*" && cat')
    assert " ".join(peer.join("10.0.0.1-CODE").split()) == f"{through}init --yes --join 10.0.0.1-CODE"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads what is not the owner's")
@pytest.mark.parametrize(("owner", "wanted"), [(65534, ["--copy-as=65534:65534"]), (0, [])])
def test_root_reads_a_users_model_with_their_rights(programs: Path, owner: int, wanted: list[str]) -> None:
    """rsync follows links: one to /etc/shadow would give its owner that file on the other node."""
    peer = far(programs, namei="exit 0", sparkd="exit 0")
    program(programs / "rsync", f'printf "%s\\n" "$@" >>{programs}/words; echo "Total transferred file size: 0 bytes"')
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:  # only root may write on the way there
        os.chown(folder, owner, owner)
        send_model(folder, lambda _: None, peer, quick=True)
    assert [word for word in (programs / "words").read_text().splitlines() if "copy-as" in word] == 2 * wanted


def test_a_check_there_is_announced_since_it_takes_minutes(programs: Path, tmp_path: Path) -> None:
    peer, lines = far(programs, namei="exit 0", sparkd="echo whole"), list[str]()
    program(programs / "rsync", 'echo "Total transferred file size: 0 bytes"')
    send_model(str(tmp_path), lines.append, peer, quick=False)
    assert lines == ["far: nothing to send", "far: its files are checked there", "far: whole"]


CLASSIC = json.dumps({"DockerRootDir": "/"})
CONTAINERD = json.dumps({"DockerRootDir": "/", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]})


@pytest.mark.parametrize(
    ("archive_gib", "info", "there_gib", "needed_gib"),
    [
        (30, CLASSIC, 0, 61),
        (30, CLASSIC, 20, None),
        (30, CLASSIC, 40, None),
        (10, CLASSIC, 0, None),
        (10, CONTAINERD, 0, 51),
        (10, CONTAINERD, 9, None),
        (30, CONTAINERD, 30, 61),
    ],
)
def test_room_is_for_the_rest_of_the_archive_and_for_the_image(
    programs: Path, archive_gib: int, info: str, there_gib: int, needed_gib: int | None
) -> None:
    """45 GiB are free, 30 are for unpacked layers; containerd's store keeps the packed ones beside them."""
    peer = far(programs, docker=f"echo '{info}'", df=f"echo /dev/x 9 9 {45 << 20} 9% /")
    there = f"{SCRATCH}/image.tar"
    if there_gib:
        with (programs.parent / "far" / there).open("wb") as file:
            file.truncate(there_gib << 30)
    image = image_copy.Image("name:tag", "0" * 64, ImageSizes(archive_gib << 30, 30 << 30))
    expected = pytest.raises(BlockedError, match=f"45.0 GiB free on /, {needed_gib}.0 GiB needed")
    with expected if needed_gib else nullcontext():
        image_copy._check_room(image, peer, there)


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> image_copy.Image:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return image_copy.Image("name:tag", "1" * 64, ImageSizes(1 << 20, 1 << 20))


DESCRIPTION = '{"RootFS": {"Layers": []}, "Config": {}}'
OTHER = f"image-{'a' * 32}"


def test_archives_of_other_images_are_named_on_both_sides_and_stay(programs: Path, image: image_copy.Image) -> None:
    peer, lines = far(programs, docker=f"echo '{DESCRIPTION}'"), list[str]()
    identity = identity_of({"RootFS": {"Layers": []}, "Config": {}}, "name:tag")
    image, here, there = structs.replace(image, identity=identity), image.file.parent, programs.parent / "far" / SCRATCH
    here.mkdir(parents=True)
    for path in (here / f"{OTHER}.part", here / "notes", there / f"{OTHER}.tar", there / image.file.name):
        path.write_bytes(bytes(3 << 20))
    assert image_copy.send_image(image, [peer], Host(), lambda _: None, lines.append) is ExitCode.GOOD
    sudo, kept = "" if os.geteuid() else "sudo ", "3 MiB are kept of another image; when no sync needs them:"
    assert lines == [
        kept,
        f"{sudo}rm {here}/{OTHER}.part",
        f"far: {kept}",
        f"{sudo}ssh far rm {SCRATCH}/{OTHER}.tar",
        "far: has name:tag already",
    ]
    assert [path.name for path in there.iterdir()] == [f"{OTHER}.tar"]
    assert (here / f"{OTHER}.part").exists()


def test_what_is_kept_after_ctrl_c_is_named(programs: Path, image: image_copy.Image) -> None:
    no_image = 'case "$1" in info) echo {};; *) echo "No such image" >&2; exit 1;; esac'
    peer, lines = far(programs, docker=no_image), list[str]()

    def save(image: image_copy.Image) -> None:
        image.file.write_bytes(bytes(1 << 20))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        image_copy.send_image(image, [peer], Host(), save, lines.append)
    assert lines == [f"kept {image.file} (1 MiB): the same command resumes with it"]


def test_a_slow_login_is_not_taken_for_a_docker_that_hangs() -> None:
    class Slow(SshHost, frozen=True):
        def run(self, *words: str, seconds: float = COMMAND_SECONDS, stdin_text: str = "") -> ProgramResult:
            return (
                ProgramResult(0, '{"RootFS": {"Layers": []}, "Config": {}}', "")
                if seconds > 30
                else ProgramResult(-9, "", "")
            )

    assert identity_of(Slow("a").inspect_image("name:tag"), "name:tag")


def test_of_a_login_that_writes_without_end_the_last_lines_are_kept(programs: Path) -> None:
    program(programs / "ssh", "/usr/bin/yes x | /usr/bin/head -c 9000000 >&2; echo last >&2; exit 3")
    ended = SshHost("far").run("true")
    assert (ended.code, len(ended.trouble), ended.trouble[-7:]) == (3, 4096, "x\nlast\n")


def test_what_a_login_leaves_behind_does_not_keep_the_caller(programs: Path) -> None:
    """As ssh's ControlPersist, with stderr open."""
    program(programs / "ssh", "/usr/bin/sleep 20 >&- & echo $! >&2; exit 3")
    begun = unstalled()
    ended = SshHost("far").run("true")
    seconds = unstalled() - begun
    os.kill(int(ended.trouble), signal.SIGKILL)
    assert (ended.code, seconds < 5) == (3, True)


def test_two_copies_of_images_at_once_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "home" / SCRATCH
    with lock_scratch(folder), pytest.raises(BlockedError, match="under way here"), lock_scratch(folder):
        pass
    with lock_scratch(folder):
        assert list(folder.iterdir()) == [], "nothing is left behind"


@pytest.mark.parametrize("ref", ["-v", "a b", "name@sha256:" + "0" * 64, ""])
def test_an_image_that_save_and_load_can_not_bring_by_name_is_refused(
    ref: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKD_ENGINE__RECIPE", "tiny-cpu")
    monkeypatch.setenv("SPARKD_ENGINE__IMAGE", "busybox@sha256:" + "0" * 64)
    assert main.main(["image", "sync", "--to", "a", "--", ref]) == 2
    assert capsys.readouterr().err.count("\n") == 2
