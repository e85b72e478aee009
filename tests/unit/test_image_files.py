"""Files of an image in overlay2's layers: what a container of it would find, told from the folders on the node."""

from __future__ import annotations

import os

import pytest
from tests.tree import Tree

from sparkd.host import Host, image_files
from sparkd.host.image_files import ElsewhereError, Stored
from sparkd.preflight import image_inside
from sparkd.preflight.check import Level
from sparkd.preflight.image import EngineImage
from sparkd.preflight.image_inside import METADATA, Inside, Launched

STORE = "/var/lib/docker/overlay2"
UPPER, MIDDLE, LOWER = LAYERS = tuple(f"{STORE}/{one}/diff" for one in "abc")
REF = "vllm:1"


def find(tree: Tree, path: str, *mounted: str) -> str | None:
    return image_files.find(Host(tree.root).files, LAYERS, path, mounted)


def test_the_topmost_layer_has_the_word_and_folders_lie_over_each_other(tree: Tree) -> None:
    tree.file(f"{LOWER}/usr/bin/bash")
    tree.file(f"{LOWER}/usr/bin/env")
    tree.file(f"{UPPER}/usr/bin/env")
    assert find(tree, "/usr/bin/bash") == f"{LOWER}/usr/bin/bash"
    assert find(tree, "/usr/bin/env") == f"{UPPER}/usr/bin/env"
    assert find(tree, "/usr/bin/no") is None
    assert find(tree, "/usr/bin") is None, "a folder is no file"
    assert find(tree, "/usr/bin/env/x") is None


def test_a_link_is_followed_in_the_image_and_never_on_the_node(tree: Tree) -> None:
    tree.file("/usr/bin/bash", "the node's")
    tree.file("/secret", "the node's")
    tree.file(f"{LOWER}/usr/bin/bash")
    tree.link(f"{LOWER}/bin", "usr/bin")
    tree.link(f"{UPPER}/absolute", "/bin/bash")
    tree.link(f"{UPPER}/up", "../../../../../../../../secret")
    tree.link(f"{UPPER}/out", "/secret")
    tree.link(f"{UPPER}/round", "round")
    assert find(tree, "/bin/bash") == find(tree, "/absolute") == f"{LOWER}/usr/bin/bash"
    assert find(tree, "/up") is find(tree, "/out") is find(tree, "/round") is None


def test_what_is_mounted_over_the_image_is_not_the_images(tree: Tree) -> None:
    tree.link(f"{LOWER}/usr/bin/serve", "/models/serve")
    for path in ("/models/serve", "/models", "/usr/bin/serve"):
        with pytest.raises(ElsewhereError):
            find(tree, path, "/models")
    assert find(tree, "/modelsx", "/models") is None


def test_what_a_layer_has_taken_away_is_gone(tree: Tree) -> None:
    tree.file(f"{LOWER}/bin/bash")
    tree.file(f"{LOWER}/opt/old/serve")
    tree.file(f"{LOWER}/lib")
    tree.folder(f"{MIDDLE}/bin")
    os.mknod(tree.root / f"{MIDDLE}/bin/bash".lstrip("/"), 0o020000, 0)
    os.setxattr(tree.folder(f"{MIDDLE}/opt/old"), "user.overlay.opaque", b"y")
    tree.file(f"{MIDDLE}/lib/x")
    assert find(tree, "/bin/bash") is find(tree, "/opt/old/serve") is find(tree, "/lib") is None
    assert find(tree, "/lib/x")


def test_a_folder_that_was_renamed_in_its_layer_can_not_be_told(tree: Tree) -> None:
    os.setxattr(tree.folder(f"{UPPER}/opt"), "user.overlay.redirect", b"old")
    with pytest.raises(OSError, match="renamed"):
        find(tree, "/opt/serve")


def described(tree: Tree, **more: object) -> Stored:
    config = {"Env": ["A=b", "PATH=/opt/bin:/bin"]}
    tree.docker(f"/images/{REF}/json", {"Id": "sha256:1", "Config": config, **more})
    return image_files.read(Host(tree.root).docker_reader(), REF)


@pytest.mark.parametrize(
    ("said", "layers"),
    [
        ({"Name": "overlay2", "Data": {"UpperDir": "/a", "LowerDir": "/b:/c"}}, ("/a", "/b", "/c")),
        ({"Name": "overlay2", "Data": {"UpperDir": "/a"}}, ("/a",)),
        ({"Name": "overlay2", "Data": {"UpperDir": "a", "LowerDir": 3}}, ()),
        ({"Name": "overlay2", "Data": {}}, ()),
        ({"Name": "overlayfs", "Data": None}, ()),
        (None, ()),
    ],
)
def test_where_docker_keeps_an_image(tree: Tree, said: object, layers: tuple[str, ...]) -> None:
    assert described(tree, GraphDriver=said).layers == layers


@pytest.mark.parametrize(
    ("config", "path"),
    [({"Env": ["PATH=/a"]}, "/a"), ({"Env": ["X=1"]}, ""), ({"Env": None}, ""), ({}, ""), (None, "")],
)
def test_an_image_may_set_no_path(tree: Tree, config: object, path: str) -> None:
    driver = {"Name": "overlay2", "Data": {"UpperDir": "/a"}}
    assert described(tree, GraphDriver=driver, Config=config) == Stored(("/a",), path)


def looked(tree: Tree, program: str = "vllm", path: str = "", *mounted: str) -> Inside:
    for layer in LAYERS:
        tree.folder(layer)
    image = Stored(LAYERS, "/opt/bin:/bin")
    return image_inside.look(Host(tree.root).files, image, Launched((program,), path, mounted))


def test_an_image_has_the_shell_and_the_program(tree: Tree) -> None:
    assert looked(tree).wrong == ("has no /bin/bash", "has no vllm in /opt/bin:/bin")
    tree.file(f"{LOWER}/bin/bash", mode=0o755)
    tree.file(f"{UPPER}/opt/bin/vllm", mode=0o644)
    assert looked(tree).wrong == ("has no vllm in /opt/bin:/bin",)
    assert looked(tree, "/opt/bin/vllm").wrong == ("has a /opt/bin/vllm that is not executable",)
    tree.file(f"{UPPER}/opt/bin/vllm", mode=0o755)
    assert looked(tree).wrong == looked(tree, "/opt/bin/vllm").wrong == ()
    assert looked(tree, path="/usr/bin").wrong == ("has no vllm in /usr/bin",), "PATH of the recipe's own"


@pytest.mark.parametrize("path", ["/mnt/bin", "bin", ":/usr/bin", "/usr/bin:/mnt/x"])
def test_a_program_that_may_come_from_elsewhere_is_not_missed(tree: Tree, path: str) -> None:
    tree.file(f"{LOWER}/bin/bash", mode=0o755)
    assert looked(tree, "vllm", path, "/mnt").wrong == ()
    assert looked(tree, "./serve").wrong == ()


def test_the_builders_note_is_shown_line_by_line(tree: Tree) -> None:
    tree.file(
        f"{MIDDLE}{METADATA}", "build_date: 2026-05-27T21:40:38Z\n\nnonsense\nbuild_args:\n  vllm_prs: '4\x1b1834'\n"
    )
    assert looked(tree).metadata == ("build_date: 2026-05-27T21:40:38Z", "  vllm_prs: '4\\x1b1834'")


@pytest.mark.parametrize("text", ["a: b\n" * 100_000, "\x00\xff" * 9])
def test_a_note_that_is_none_is_left_out(tree: Tree, text: str) -> None:
    tree.file(f"{LOWER}{METADATA}", text)
    assert looked(tree).metadata == ()


def test_the_check_blocks_on_what_a_launch_would_fail_at_and_on_nothing_that_it_can_not_see(tree: Tree) -> None:
    tree.dockerd()
    tree.docker("/version", {"Version": "28.2.2", "Arch": "arm64"})
    driver = {"Name": "overlay2", "Data": {"UpperDir": UPPER, "LowerDir": f"{MIDDLE}:{LOWER}"}}
    check = EngineImage(REF, (), Launched(("vllm",), "", ()))
    described(tree, Architecture="arm64", Os="linux", GraphDriver=driver)
    for layer in (UPPER, LOWER):
        tree.folder(layer)
    facts, verdict = check.look(Host(tree.root))
    assert (facts.inside, verdict.level) == (None, Level.OK), "a layer lies where the agent can't see it"
    tree.folder(MIDDLE)
    verdict = check.look(Host(tree.root))[1]
    assert verdict.level is Level.BLOCK
    assert "has no /bin/bash and has no vllm in /opt/bin:/bin, which the launch executes" in verdict.reason
    described(tree, Architecture="arm64", Os="linux")
    facts, verdict = check.look(Host(tree.root))
    assert (facts.inside, verdict.level) == (None, Level.OK)
