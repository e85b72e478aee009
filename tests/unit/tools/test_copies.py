"""Models and images that are copied to another node: whose rights, how much room, and what stays of a broken copy."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from msgspec import structs
from tests.tree import Tree
from tests.unit.tools.ssh_nodes import make_peer, write_program

from sparkd.agent.actions.image_archive import lock_scratch
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.docker_image import identity_of
from sparkd.base.lib.dockerd.reader import FORBIDDEN, DockerError, DockerReader
from sparkd.base.lib.errors import BlockedError, ExitCode
from sparkd.tools.cli import main
from sparkd.tools.models import image_copy
from sparkd.tools.models.image_copy import SCRATCH
from sparkd.tools.models.image_store import ImageSizes
from sparkd.tools.models.model_files import send_model
from sparkd.tools.models.ssh import SshHost

CLASSIC = json.dumps({"DockerRootDir": "/"})
CONTAINERD = json.dumps({"DockerRootDir": "/", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]})
DESCRIPTION = '{"RootFS": {"Layers": []}, "Config": {}}'
OTHER = f"image-{'a' * 32}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads what is not the owner's")
@pytest.mark.parametrize(("owner", "wanted"), [(65534, ["--copy-as=65534:65534"]), (0, [])])
def test_root_reads_a_users_model_with_their_rights(bin_folder: Path, owner: int, wanted: list[str]) -> None:
    """rsync follows links: one to /etc/shadow would give its owner that file on the other node."""
    peer = make_peer(bin_folder, namei="exit 0", sparkd="exit 0")
    write_program(
        bin_folder / "rsync", f'printf "%s\\n" "$@" >>{bin_folder}/words; echo "Total transferred file size: 0 bytes"'
    )
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:  # only root may write on the way there
        os.chown(folder, owner, owner)
        send_model(folder, lambda _: None, peer, quick=True)
    # Twice: rsync counts what there is to send, and sends it.
    assert [word for word in (bin_folder / "words").read_text().splitlines() if "copy-as" in word] == 2 * wanted


def test_a_check_there_is_announced_since_it_takes_minutes(bin_folder: Path, tmp_path: Path) -> None:
    peer, lines = make_peer(bin_folder, namei="exit 0", sparkd="echo whole"), list[str]()
    write_program(bin_folder / "rsync", 'echo "Total transferred file size: 0 bytes"')
    send_model(str(tmp_path), lines.append, peer, quick=False)
    assert lines == ["far: nothing to send", "far: its files are checked there", "far: whole"]


def image_of(archive_gib: int) -> image_copy.Image:
    """An image whose unpacked layers take 30 GiB."""
    return image_copy.Image("name:tag", "0" * 64, ImageSizes(archive_gib << 30, 30 << 30))


def make_peer_with_room(bin_folder: Path, info: str, there_gib: int) -> tuple[SshHost, str]:
    """A node with 45 GiB free, and the path of the archive there, of which an earlier copy has left `there_gib`."""
    peer = make_peer(bin_folder, docker=f"echo '{info}'", df=f"echo /dev/x 9 9 {45 << 20} 9% /")
    archive = f"{SCRATCH}/image.tar"
    if there_gib:
        with (bin_folder.parent / "far" / archive).open("wb") as file:
            file.truncate(there_gib << 30)
    return peer, archive


@pytest.mark.parametrize(
    ("archive_gib", "info", "there_gib"),
    [(30, CLASSIC, 20), (30, CLASSIC, 40), (10, CLASSIC, 0), (10, CONTAINERD, 9)],
)
def test_room_for_the_rest_of_the_archive_and_for_the_image_is_enough(
    bin_folder: Path, archive_gib: int, info: str, there_gib: int
) -> None:
    image_copy.check_room(image_of(archive_gib), *make_peer_with_room(bin_folder, info, there_gib))


@pytest.mark.parametrize(
    ("archive_gib", "info", "there_gib", "needed_gib"),
    [(30, CLASSIC, 0, 61), (10, CONTAINERD, 0, 51), (30, CONTAINERD, 30, 61)],
)
def test_less_room_is_refused_with_what_is_needed(
    bin_folder: Path, archive_gib: int, info: str, there_gib: int, needed_gib: int
) -> None:
    """containerd's store keeps the packed layers beside the unpacked ones."""
    with pytest.raises(BlockedError, match=f"45.0 GiB free on /, {needed_gib}.0 GiB needed"):
        image_copy.check_room(image_of(archive_gib), *make_peer_with_room(bin_folder, info, there_gib))


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> image_copy.Image:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return image_copy.Image("name:tag", "1" * 64, ImageSizes(1 << 20, 1 << 20))


def test_archives_of_other_images_are_named_on_both_sides_and_stay(bin_folder: Path, image: image_copy.Image) -> None:
    peer, lines = make_peer(bin_folder, docker=f"echo '{DESCRIPTION}'"), list[str]()
    identity = identity_of({"RootFS": {"Layers": []}, "Config": {}}, "name:tag")
    image = structs.replace(image, identity=identity)
    here, there = image.file.parent, bin_folder.parent / "far" / SCRATCH
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


def test_what_is_kept_after_ctrl_c_is_named(bin_folder: Path, image: image_copy.Image) -> None:
    no_image = 'case "$1" in info) echo {};; *) echo "No such image" >&2; exit 1;; esac'
    peer, lines = make_peer(bin_folder, docker=no_image), list[str]()

    def save(image: image_copy.Image) -> None:
        image.file.write_bytes(bytes(1 << 20))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        image_copy.send_image(image, [peer], Host(), save, lines.append)
    assert lines == [f"kept {image.file} (1 MiB): the same command resumes with it"]


def test_two_copies_of_images_at_once_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "home" / SCRATCH
    with lock_scratch(folder), pytest.raises(BlockedError, match="under way here"), lock_scratch(folder):
        pass
    with lock_scratch(folder):
        assert list(folder.iterdir()) == [], "nothing is left behind"


class BarredHost(Host):
    """A machine whose docker is for others than this user."""

    def docker_reader(self) -> DockerReader:
        raise DockerError(f"GET /images/i/json: {FORBIDDEN}")


def test_a_user_outside_of_dockers_group_gets_the_command_that_puts_them_in(tree: Tree) -> None:
    tree.dockerd()
    with pytest.raises(BlockedError, match=FORBIDDEN) as caught:
        image_copy.find_image("i", Settings(), BarredHost(tree.root))
    assert caught.value.hint.startswith("sudo usermod -aG docker ")


@pytest.mark.parametrize("ref", ["-v", "a b", "name@sha256:" + "0" * 64, ""])
def test_an_image_that_save_and_load_can_not_bring_by_name_is_refused(
    ref: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKD_ENGINE__RECIPE", "tiny-cpu")
    monkeypatch.setenv("SPARKD_ENGINE__IMAGE", "busybox@sha256:" + "0" * 64)
    assert main.main(["image", "sync", "--to", "a", "--", ref]) == 2
    assert capsys.readouterr().err.count("\n") == 2
