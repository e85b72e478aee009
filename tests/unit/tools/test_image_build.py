"""What goes into a built image: only the files that the recipe names, and what differs from the build before."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.docker_server import STREAM, chunk, dockerd, json_response, plain
from tests.unit.node_reports import HEAD_REPORT

from sparkd.agent.actions import image_builder as dockers
from sparkd.base.config.settings import Memory
from sparkd.base.host import Host
from sparkd.base.host.disks import Room
from sparkd.base.host.docker_image import Image
from sparkd.base.host.image_origin import BUILT, BuiltFrom, find_built, read_built
from sparkd.base.lib.dockerd.reader import DockerError, DockerReader
from sparkd.base.lib.errors import BlockedError, ConfigError, LaunchError, SparkdError, UsageError
from sparkd.base.lib.text import GIB, MIB
from sparkd.base.recipes.image import MOST_BYTES, MOST_FILES
from sparkd.base.status.model import Phase, dump
from sparkd.tools.cli.image import explain_interrupt
from sparkd.tools.models.image_build import (
    Sources,
    explain_full_disk,
    find_memory,
    find_remedy,
    read_sources,
)

ROOM = Room(9 * GIB, 2 * GIB, None, path="/data/docker", mount="/data", read_only=False)
BASE = Image("sha256:" + "1" * 64, "arm64", "", 1000, "", (), (), ())


def recipe(folder: Path, *steps: object) -> str:
    image = {"ref": "mine:1", "build": {"from": "base:1", "steps": steps}}
    (folder / "r.yaml").write_text(json.dumps({"schema": 1, "name": "r", "model": {"path": "m"}, "image": image}))
    return str(folder / "r.yaml")


def sources(folder: Path, *steps: object) -> Sources:
    return read_sources(recipe(folder, *steps), Host())


@pytest.fixture
def mod(tmp_path: Path) -> Path:
    (tmp_path / "mods/fix/.hidden").mkdir(parents=True)
    (tmp_path / "mods/fix/run.sh").write_text("echo fixed\n")
    (tmp_path / "mods/fix/run.sh").chmod(0o755)
    (tmp_path / "mods/fix/.hidden/a.patch").write_text("patch")
    (tmp_path / "mods/other").write_text("not named")
    return tmp_path


COPY = {"copy": "mods/fix", "to": "/fix"}


def test_the_archive_has_what_is_named_and_nothing_of_its_owner(mod: Path) -> None:
    made = sources(mod, COPY, {"run": "/fix/run.sh"})
    with tarfile.open(fileobj=io.BytesIO(made.archive(BASE))) as tar:
        members = {member.name: member for member in tar}
        dockerfile = tar.extractfile(dockers.DOCKERFILE)
        assert dockerfile
        assert dockerfile.read().decode().startswith(f"FROM {BASE.id}\nCOPY ")
    assert members.keys() == {"mods/fix/run.sh", "mods/fix/.hidden/a.patch", dockers.DOCKERFILE}
    assert {(member.uid, member.mtime, member.uname) for member in members.values()} == {(0, 0, "")}
    assert [members[f"mods/fix/{name}"].mode for name in ("run.sh", ".hidden/a.patch")] == [0o755, 0o644]
    assert made.archive(BASE) == made.archive(BASE)


def link(path: Path, target: str) -> None:
    path.symlink_to(target)


def others_may_write(path: Path, _target: str) -> None:
    path.write_text("x")
    path.chmod(0o666)


def socket(path: Path, _target: str) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("make", "target", "needle"),
    [
        (link, "/etc/shadow", "is a link"),
        (link, "../other", "is a link"),
        (link, "/proc", "is a link"),
        (socket, "", "is a link, no file"),
        (others_may_write, "", "others than root may write to"),
    ],
)
def test_a_folder_with_anything_but_files_of_roots_is_refused(
    mod: Path, make: Callable[[Path, str], None], target: str, needle: str
) -> None:
    make(mod / "mods/fix/bad", target)
    with pytest.raises(ConfigError, match=needle):
        sources(mod, COPY)


def test_a_link_on_the_way_is_refused_and_so_is_what_is_missing_or_too_much(
    mod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mod / "there").symlink_to("/etc")
    with pytest.raises(ConfigError, match="a link is on the way"):
        sources(mod, {"copy": "there/hostname", "to": "/x"})
    with pytest.raises(ConfigError, match="no such file"):
        sources(mod, {"copy": "missing", "to": "/x"})
    (mod / "mods/fix/large").write_bytes(bytes(MOST_BYTES))
    with pytest.raises(ConfigError, match="at most 64"):
        sources(mod, COPY)
    (mod / "mods/fix/large").unlink()
    for number in range(MOST_FILES - 1):  # and two of the mod
        (mod / f"mods/fix/{number}").touch()
    with pytest.raises(ConfigError, match="more than 1000 files"):
        sources(mod, COPY)


@pytest.mark.parametrize("build", ["docker build by hand", ""])
def test_a_recipe_without_steps_says_how_to_get_its_image(tmp_path: Path, build: str) -> None:
    image = {"ref": "mine:1", "build": build}
    text = json.dumps({"schema": 1, "name": "r", "model": {"path": "m"}, "image": image})
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_sources(str(tmp_path / "r.yaml"), Host())
    assert (build or "docker pull mine:1") in caught.value.hint


def test_what_is_confirmed_shows_programs_whole_and_no_control_character(mod: Path) -> None:
    shown = list(sources(mod, {"run": "one\n  two \x1b[2J\x07"}, COPY).describe())
    assert shown[2:] == ["  1  run one", "       two \\x07", "  2  copy mods/fix to /fix (2 files)"]


def test_each_difference_from_the_build_before_is_said(mod: Path) -> None:
    before = sources(mod, COPY, {"run": "a"}, {"run": "gone"}).built_from(BASE)
    assert list(before.changes(before)) == []
    (mod / "mods/fix/run.sh").write_text("echo other\n")
    now = sources(mod, COPY, {"run": "b"}).built_from(replace(BASE, id="sha256:2"))
    assert list(now.changes(before)) == [
        "the base: from base:1 (2); before: from base:1 (111111111111)",
        "step 1: copy mods/fix to /fix; before: with other files",
        "step 2: run b; before: run a",
        "step 3: nothing; before: run gone",
    ]


class BuildRun(NamedTuple):
    lines: list[str]
    image: str
    request: str


def run(*messages: object) -> BuildRun:
    """A build by a docker that answers it with these messages."""
    requests = list[str]()
    pieces = (STREAM, *(chunk(json.dumps(message).encode() + b"\r\n") for message in messages), chunk(b""))

    def answer(request: str) -> Iterable[bytes]:
        if plain(request) != "POST /build":  # a connection may close without one
            return json_response({})
        requests.append(request)
        return pieces

    lines: list[str] = []
    with dockerd(answer) as path:
        made = dockers.build(b"", {}, 5 * GIB, cached=True, socket_path=path)
        while True:
            try:
                lines.append(next(made))
            except StopIteration as ended:
                return BuildRun(lines, str(ended.value), requests[0])


def test_a_steps_memory_is_bounded_without_swap() -> None:
    query = parse_qs(run({"aux": {"ID": "sha256:1"}}).request.split()[1].partition("?")[2])
    assert query["memory"] == [str(5 * GIB)]
    assert query["memswap"] == [str(5 * GIB)]


def node(tree: Tree, available_mib: int, phase: Phase | None = None) -> Host:
    tree.file("/proc/meminfo", f"MemTotal: 9 kB\nMemFree: 9 kB\nMemAvailable: {available_mib << 10} kB\n")
    if phase is not None:
        tree.process(HEAD_REPORT.pid, "sparkd", start_time=HEAD_REPORT.start_time)
        tree.file("/run/sparkd/report.json", dump(replace(HEAD_REPORT, phase=phase)))
    return Host(tree.root)


def test_a_step_gets_what_is_available_without_what_an_engine_needs_left(tree: Tree) -> None:
    memory = Memory(headroom_gib=2, floor_mib=512)
    assert find_memory(node(tree, 10_000, Phase.SERVING), memory) == (10_000 - 2560) * MIB
    assert find_memory(node(tree, 2560 + 2048), memory) == 2 * GIB
    with pytest.raises(BlockedError, match=r"4.5 GiB of memory available, 4.5 GiB needed") as caught:
        find_memory(node(tree, 2560 + 2047), memory)
    assert "sudo systemctl stop sparkd-head sparkd-worker" in caught.value.hint


@pytest.mark.parametrize("phase", [Phase.LAUNCHING, Phase.LOADING])
def test_nothing_is_built_while_an_engine_takes_its_memory(tree: Tree, phase: Phase) -> None:
    with pytest.raises(BlockedError, match="an engine is loading"):
        find_memory(node(tree, 100_000, phase), Memory())


@pytest.mark.parametrize(
    ("output", "needle"),
    [
        ("The command '/bin/bash' returned a non-zero code: 137", "5.0 GiB of memory"),
        (
            "g++: fatal error: Killed signal terminated program cc1plus\nreturned a non-zero code: 1",
            "5.0 GiB of memory",
        ),
        ("Skilled\nreturned a non-zero code: 1", "correct the recipe's step"),
    ],
)
def test_a_failed_step_says_what_helps(output: str, needle: str) -> None:
    assert needle in find_remedy(output, 5 * GIB)


@pytest.mark.parametrize(
    "error",
    [
        BlockedError(
            "  cat: write error: No space left on device\nstep 4 (run x) failed: non-zero code: 1", "correct it"
        ),
        BlockedError("docker names no image: write /a: no space left on device", "systemctl status docker"),
        LaunchError("container sparkd-build-1 can't be made: mkdir /a: no space left on device"),
    ],
)
def test_a_full_disk_is_named_with_its_room_before_and_now_wherever_it_shows(tree: Tree, error: SparkdError) -> None:
    counts = {"total_bytes": 9 * GIB, "free_bytes": 3 * GIB, "free_inodes": None}
    tree.file("/.sparkd/disks.json", json.dumps({"/data": counts}))
    with pytest.raises(BlockedError) as caught, explain_full_disk(ROOM, Host(tree.root)):
        raise error
    assert caught.value.reason == (
        f"{error.reason}\nno space left on /data, where docker builds, unless a line above names another place: "
        "2.0 GiB was free when it began (3.0 GiB is free now); no image has got or lost a name: make room, and build "
        "again"
    )
    assert caught.value.hint == "sudo docker system df"


def test_what_fails_with_room_left_keeps_its_own_words(tree: Tree) -> None:
    wrong = BlockedError("step 1 (run false) failed", "correct the recipe's step")
    with pytest.raises(BlockedError) as caught, explain_full_disk(ROOM, Host(tree.root)):
        raise wrong
    assert caught.value is wrong


def test_an_interrupt_says_what_stays_and_how_to_resume(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), explain_interrupt("my recipe"):
        raise KeyboardInterrupt
    assert "no image has got or lost a name" in (shown := capsys.readouterr().err)
    assert "\nsudo sparkd image build 'my recipe'   # to resume\n" in shown


def test_the_builders_pieces_become_lines_and_the_last_image_is_the_result() -> None:
    built = run({"stream": "Step 1/2"}, {"stream": " : FROM x\nab"}, {"aux": {"ID": "sha256:1"}}, {"stream": "c\n"})
    assert built.lines == ["Step 1/2 : FROM x", "abc"]
    assert built.image == "sha256:1"


def test_an_error_in_the_stream_is_one_and_odd_messages_are_nothing() -> None:
    with pytest.raises(DockerError, match="returned a non-zero code: 3"):
        run({"error": "The command returned a non-zero code: 3", "errorDetail": {"code": 3}})
    built = run(7, [], {"stream": 7}, {"aux": {}}, {"stream": "x" * 9000 + "\n"})
    assert built.lines == ["x" * dockers.LONGEST_LINE]
    assert built.image == ""


def test_a_label_of_somebody_elses_is_bounded_and_escaped() -> None:
    shown = BuiltFrom("a\x1b[2J", "sha256:" + "x" * 999, (("run \x07" + "y" * 999, "z"),)).lines()
    assert all(line.isprintable() and len(line) <= 260 for line in shown)


MANY_STEPS = json.dumps({"base": "a", "base_id": "b", "steps": [["", ""]] * 65})
LABELS_OF_OTHERS = [None, "", "7", "{", '{"base": 1}', "x" * 70_000, '{"x": ' + "[" * 60_000, MANY_STEPS]


@pytest.mark.parametrize("label", LABELS_OF_OTHERS)
def test_a_label_that_sparkd_did_not_write_is_none(label: str | None) -> None:
    class Reader(DockerReader):
        def __init__(self) -> None: ...

        def image(self, ref: str) -> object:
            return {"Config": {"Labels": None if label is None else {BUILT: label}}}

    assert read_built(Reader(), "mine:1") is None


@pytest.mark.parametrize(
    ("ref", "name"),
    [
        ("localhost/a:1", "localhost/a:1"),
        ("localhost/a:new", "localhost/a:2"),  # the newest one that sparkd has built
        ("localhost/a", "localhost/a:2"),
        ("localhost/b:new", ""),
        ("a", ""),
    ],
)
def test_the_build_before_has_the_name_or_another_tag_of_its_repository(ref: str, name: str) -> None:
    tags = ["localhost/a:3", "localhost/a:2", "localhost/a:1", "localhost:5000/a:1"]

    class Reader(DockerReader):
        def __init__(self) -> None: ...

        def images(self) -> object:
            return [{"RepoTags": None}, "rubbish", *({"RepoTags": [tag]} for tag in tags)]

        def image(self, ref: str) -> object:
            label = json.dumps({"base": ref, "base_id": "b", "steps": []})
            return {"Config": {"Labels": {BUILT: label}}} if ref in tags[1:] else None

    built_name, built = find_built(Reader(), ref)
    assert built_name == name
    assert (built.base if built else "") == name
