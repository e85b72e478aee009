"""Room where a launch writes, and file systems that let it write."""

import json

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.plans import plan
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level, Verdict
from sparkd.agent.preflight.checks.disk import CACHES, LOGS, STATE, DiskFacts, DiskRoom, Place, PlaceFacts
from sparkd.base.host import Host, disks, docker_config
from sparkd.base.host.disks import Room
from sparkd.base.lib.text import GIB, MIB
from sparkd.base.plan.model import Cache

DOCKER = Place("/var/lib/docker", "docker's", 256 * MIB, 5 * GIB, optional=True)
ROOM = Room(100 * GIB, 50 * GIB, 1_000_000, "", "/", read_only=False)
READ_ONLY = replace(ROOM, read_only=True)
SPARSE = replace(ROOM, free_inodes=99)


def free(size_bytes: int) -> Room:
    return replace(ROOM, free_bytes=size_bytes)


def judged(*places: tuple[Place, Room]) -> Verdict:
    return DiskRoom().judge(DiskFacts(tuple(PlaceFacts(place, room) for place, room in places)))


@pytest.mark.parametrize(
    ("place", "room", "level", "words"),
    [
        (STATE, ROOM, Level.OK, "50.0 GiB free on /"),
        (STATE, free(64 * MIB), Level.WARN, "64 MiB free on /, 256 MiB needed for /var/lib/sparkd"),
        (STATE, free(64 * MIB - 1), Level.BLOCK, "64 MiB needed"),
        (STATE, READ_ONLY, Level.BLOCK, "mounted read-only"),
        (STATE, SPARSE, Level.BLOCK, "99 inodes free"),
        (STATE, replace(ROOM, free_inodes=None), Level.OK, ""),
        (CACHES, free(10 * GIB), Level.OK, ""),
        (CACHES, free(10 * GIB - 1), Level.WARN, "compile caches"),
        (CACHES, free(0), Level.WARN, "compile caches"),
        (DOCKER, free(5 * GIB - 1), Level.WARN, "sudo docker system df"),
        (DOCKER, free(256 * MIB - 1), Level.BLOCK, "256 MiB needed"),
        (DOCKER, READ_ONLY, Level.BLOCK, "sudo mount -o remount,rw /"),
        (LOGS, free(1), Level.WARN, "the journal"),
        (LOGS, READ_ONLY, Level.WARN, "read-only"),
        (LOGS, SPARSE, Level.WARN, "df -i /"),
    ],
)
def test_a_disk_that_is_full_or_read_only_blocks_where_a_launch_must_write_and_else_warns(
    place: Place, room: Room, level: Level, words: str
) -> None:
    expect(judged((place, room)), level, text=words)


def test_one_disk_is_named_once_by_what_is_worst_there() -> None:
    full = free(200 * MIB)
    verdict = judged((STATE, full), (CACHES, full), (DOCKER, full), (LOGS, full))
    expect(verdict, Level.BLOCK, "/var/lib/docker")
    assert verdict.reason.count("free on") == 1


def test_each_disk_is_named() -> None:
    other = replace(free(1), mount="/var/lib/docker")
    verdict = judged((STATE, free(1)), (DOCKER, other))
    assert "free on /," in verdict.reason
    assert "free on /var/lib/docker," in verdict.reason


def record_disks(tree: Tree, **rooms: object) -> None:
    tree.file("/.sparkd/disks.json", json.dumps(rooms))


PLAN = replace(plan(), caches=(Cache("vllm", "/root/.cache/vllm"),))
COUNTS = {"total_bytes": 10, "free_bytes": 5, "free_inodes": None}


def places(tree: Tree, *, caches: bool = True) -> dict[str, Room]:
    return {
        facts.place.path: facts.room
        for facts in DiskRoom(PLAN if caches else replace(PLAN, caches=())).probe(Host(tree.root)).places
    }


def test_a_folder_is_on_the_nearest_disk_above_it_as_it_was_mounted_last(tree: Tree) -> None:
    record_disks(tree, **{"/": COUNTS, "/var/lib": {**COUNTS, "free_bytes": 7}})
    tree.folder("/var/log")
    tree.file("/proc/1/mounts", "a / ext4 rw 0 0\nb /var/lib ext4 rw 0 0\nc /var/lib ext4 rw,ro 0 0\n")
    rooms = places(tree)
    assert rooms["/var/lib/sparkd"] == Room(10, 7, None, "/var/lib/sparkd", "/var/lib", read_only=True)
    assert rooms["/var/log"] == Room(10, 5, None, "/var/log", "/", read_only=False)
    assert "/var/lib/docker" not in rooms, "no docker here"


def test_a_plan_without_caches_needs_no_room_for_them(tree: Tree) -> None:
    record_disks(tree, **{"/": COUNTS})
    assert set(places(tree, caches=False)) == {"/var/lib/sparkd"}


def test_links_are_followed_and_blanks_in_names_of_mounts_decoded(tree: Tree) -> None:
    record_disks(tree, **{"/": COUNTS})
    tree.folder("/mnt/big disk/sparkd")
    tree.link("/var/lib/sparkd", "/mnt/big disk/sparkd")
    tree.file("/proc/1/mounts", "a / ext4 rw 0 0\nb /mnt/big\\040disk ext4 ro 0 0\n")
    assert places(tree)["/var/lib/sparkd"].mount == "/mnt/big disk"
    assert places(tree)["/var/lib/sparkd"].read_only


@pytest.mark.parametrize("options", ["ro,relatime", "rw,errors=remount-ro,emergency_ro", "rw,relatime,shutdown"])
def test_a_disk_that_an_error_has_closed_is_read_only_whatever_it_calls_itself(tree: Tree, options: str) -> None:
    record_disks(tree, **{"/": COUNTS})
    tree.file("/proc/1/mounts", f"a / ext4 {options} 0 0\n")
    assert places(tree)["/var/lib/sparkd"].read_only
    tree.file("/proc/1/mounts", "a / ext4 rw,errors=remount-ro 0 0\n")
    assert not places(tree)["/var/lib/sparkd"].read_only


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ('{"data-root": "/data/docker"}', "/data/docker"),
        ('{"data-root": 3}', docker_config.DATA_ROOT),
        ("{", docker_config.DATA_ROOT),
        ("[" * 9999, docker_config.DATA_ROOT),
        ("[]", docker_config.DATA_ROOT),
    ],
)
def test_docker_keeps_its_images_where_its_configuration_says(tree: Tree, text: str, root: str) -> None:
    tree.file("/etc/docker/daemon.json", text)
    tree.folder(root)
    record_disks(tree, **{"/": COUNTS})
    assert root in places(tree)


@pytest.mark.parametrize(
    "arguments", ["--data-root=/data/docker", "--data-root\0/data/docker", "--config-file=/etc/d.json"]
)
def test_docker_keeps_its_images_where_its_arguments_say(tree: Tree, arguments: str) -> None:
    """An old /var/lib/docker beside it, on a disk that is full, is none of docker's."""
    tree.dockerd()
    tree.file("/proc/700/cmdline", f"/usr/bin/dockerd\0{arguments}\0-H\0fd://\0")
    tree.file("/etc/d.json", '{"data-root": "/data/docker"}')
    tree.folder("/data/docker")
    tree.folder(docker_config.DATA_ROOT)
    record_disks(tree, **{"/": COUNTS})
    assert "/data/docker" in places(tree)
    assert docker_config.DATA_ROOT not in places(tree)


def test_a_tree_that_says_nothing_of_its_disks_is_good(tree: Tree) -> None:
    check = DiskRoom()
    assert check.judge(check.probe(Host(tree.root))).level is Level.OK


@pytest.mark.parametrize("text", ["{", "[]", '{"/": 1}', '{"/": {"total_bytes": 1}}'])
def test_a_malformed_record_raises(tree: Tree, text: str) -> None:
    tree.file("/.sparkd/disks.json", text)
    with pytest.raises(ValueError):  # whatever it says, the check could not look
        places(tree)


def test_this_machine_has_room_on_a_disk_that_is_mounted() -> None:
    folder, proc = disks.read_rooms(Host(), ("/var/lib/sparkd/no/such/folder", "/proc"))
    assert folder.path == "/var/lib/sparkd/no/such/folder"
    assert folder.total_bytes >= folder.free_bytes > 0
    assert proc.mount == "/proc"


def test_the_sandbox_of_sparkds_unit_is_not_the_machine(tree: Tree) -> None:
    """ProtectSystem= makes all of it read-only, for sparkd alone."""
    record_disks(tree, **{"/": COUNTS})
    tree.file("/proc/self/mounts", "a / ext4 ro 0 0\na /var/lib/sparkd ext4 rw 0 0\n")
    tree.file("/proc/1/mounts", "a / ext4 rw 0 0\n")
    tree.folder("/var/log")
    assert places(tree)["/var/log"].read_only is False
