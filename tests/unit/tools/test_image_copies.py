"""Images that are copied to another node: which can be, how much room they need, and what stays of a broken copy."""

import json
import os
from pathlib import Path

import pytest
from msgspec import structs
from tests.tree import Tree
from tests.unit.tools.ssh_nodes import make_peer

from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.docker_image import identity_of
from sparkd.base.lib.dockerd.reader import FORBIDDEN, DockerError, DockerReader
from sparkd.base.lib.errors import BlockedError, ExitCode
from sparkd.base.lib.text import size
from sparkd.tools.cli import main
from sparkd.tools.models import image_copy
from sparkd.tools.models.image_copy import SCRATCH
from sparkd.tools.models.image_store import ImageSizes
from sparkd.tools.models.peers import SPARE_BYTES
from sparkd.tools.models.ssh import SshHost

CLASSIC = json.dumps({"DockerRootDir": "/"})
CONTAINERD = json.dumps({"DockerRootDir": "/", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]})
DIGEST = "sha256:" + "0" * 64
DESCRIPTION = '{"RootFS": {"Layers": []}, "Config": {}}'
OTHER = f"image-{'a' * 32}"


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
    ("archive_gib", "info", "there_gib", "taken_gib"),
    [(30, CLASSIC, 0, 30 + 30), (10, CONTAINERD, 0, 10 + 30 + 10), (30, CONTAINERD, 30, 0 + 30 + 30)],
)
def test_less_room_is_refused_with_what_is_needed(
    bin_folder: Path, archive_gib: int, info: str, there_gib: int, taken_gib: int
) -> None:
    """The archive's rest, the unpacked layers, and beside these in containerd's store the packed ones."""
    with pytest.raises(BlockedError, match=f"45.0 GiB free on /, {size((taken_gib << 30) + SPARE_BYTES)} needed"):
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


class BarredHost(Host):
    """A machine whose docker is for others than this user."""

    def docker_reader(self) -> DockerReader:
        raise DockerError(f"GET /images/i/json: {FORBIDDEN}")


def test_a_user_outside_of_dockers_group_gets_the_command_that_puts_them_in(tree: Tree) -> None:
    tree.dockerd()
    with pytest.raises(BlockedError, match=FORBIDDEN) as caught:
        image_copy.find_image("i", Settings(), BarredHost(tree.root))
    assert caught.value.hint.startswith("sudo usermod -aG docker ")


def test_an_image_that_is_missing_here_is_to_be_pulled_also_where_it_is_not_the_plans(tree: Tree) -> None:
    tree.dockerd()
    with pytest.raises(BlockedError, match="org/i:2 is not on this node") as caught:
        image_copy.find_image("org/i:2", Settings(), Host(tree.root))
    assert caught.value.hint.startswith("sudo docker pull org/i:2")
    settings = Settings.model_validate({"engine": {"recipe": "tiny-cpu", "image": "org/i:2"}})
    for word in ("org/i:2", None):
        with pytest.raises(BlockedError, match="org/i:2 is not on this node") as caught:
            image_copy.find_image(word, settings, Host(tree.root))
        assert caught.value.hint.endswith("sudo sparkd preflight --dry-run says how"), "it knows how that is built"


@pytest.mark.parametrize(
    ("ref", "reason"),
    [("-v", "no name"), ("a b", "no name"), (f"name@{DIGEST}", "named by its digest"), ("", "named by its digest")],
)
def test_an_image_that_save_and_load_can_not_bring_by_name_is_refused(
    ref: str, reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKD_ENGINE__RECIPE", "tiny-cpu")
    monkeypatch.setenv("SPARKD_ENGINE__IMAGE", f"busybox@{DIGEST}")
    assert main.main(["image", "sync", "--to", "a", "--", ref]) == ExitCode.USAGE
    shown, hint = capsys.readouterr().err.splitlines()
    assert reason in shown
    assert hint.startswith("hint: ")
