"""Mods of an imported recipe, and what runs before its engine: built into the image, mounted, or left out."""

import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.published_recipes import SERVES, TEMPLATE, V1, V2, add_mod, imported

from sparkd.base.lib.errors import ConfigError
from sparkd.base.recipes.image import Build
from sparkd.tools.importers import convert
from sparkd.tools.importers.bundle import Place
from sparkd.tools.importers.mods import MOST_FILES, find_mod


def test_a_template_that_a_mod_only_copies_is_mounted(root: Path) -> None:
    add_mod(root / "mods/fix-chat", TEMPLATE, chat_jinja="{{ x }}")
    recipe, result = imported(root, f"{V1}mods: [mods/fix-chat]\ncommand: vllm serve o/m --chat-template fixed.jinja\n")
    (volume,) = recipe.container.volumes
    ((name, file),) = result.files.items()
    assert (volume.source, volume.read_only) == (f"/etc/sparkd/recipes/{name}", True)
    assert recipe.args["chat-template"] == volume.target == "/workspace/mods/fix-chat/chat.jinja"
    assert (file.content, recipe.image.ref) == (b"{{ x }}", "vllm-node-own")


@pytest.mark.parametrize(
    "more",
    [
        "pip install x",
        "cp chat.jinja /usr/x.jinja",
        'echo "$(id)"',
        "echo a > /etc/x",
        "cp none.jinja $WORKSPACE_DIR/b.jinja",
    ],
)
def test_a_mod_that_does_anything_else_is_built(root: Path, more: str) -> None:
    add_mod(root / "mods/fix-chat", TEMPLATE + more, chat_jinja="{{ x }}")
    recipe, _ = imported(root, f"{V1}mods: [fix-chat]\ncommand: vllm serve o/m --chat-template fixed.jinja\n")
    assert recipe.image.ref.startswith("localhost/given:")
    assert recipe.container.volumes == ()


def test_mods_become_steps_of_a_build_in_their_order(root: Path) -> None:
    add_mod(root / "mods/b", "patch -p1 < x.patch\n", x_patch="--- a\n")
    add_mod(root / "recipes/a", "true\n")
    recipe, conversion = imported(root, f"{V1}mods: [mods/b, a]\nbuild_args: [--tf5, 'a b']\n{SERVES}")
    build = recipe.image.build
    assert isinstance(build, Build)
    (folder,) = {name.partition("/")[0] for name in conversion.files}
    assert (build.base, [str(step) for step in build.steps]) == (
        "vllm-node-own",
        [
            f"copy {folder}/b to /workspace/mods/b",
            "run export WORKSPACE_DIR=$PWD && cd /workspace/mods/b && ./run.sh",
            f"copy {folder}/a to /workspace/mods/a",
            "run export WORKSPACE_DIR=$PWD && cd /workspace/mods/a && ./run.sh",
        ],
    )
    assert conversion.text.count("\n      - {") == 4, "a step is a line"
    assert {name: file.executable for name, file in conversion.files.items()} == {
        f"{folder}/a/run.sh": True,
        f"{folder}/b/run.sh": True,
        f"{folder}/b/x.patch": False,
    }
    by_hand = shlex.split(conversion.steps[0])
    assert by_hand[-4:] == ["-t", "vllm-node-own", "--tf5", "a b)"]
    assert "torch is built without CUDA" in str(recipe.image.asserts)
    assert conversion.steps[1] == "sudo sparkd image build /etc/sparkd/recipes/given.yaml"


def test_pre_exec_is_done_to_the_image_before_the_mods(root: Path) -> None:
    add_mod(root / "mods/b", "true\n")
    commands = ["pip install x", "sed -i s/a/b/ /usr/lib/vllm/models/y.py"]
    recipe, conversion = imported(root, f"{V2}pre_exec: {commands}\nmods: [b]\n{SERVES}")
    assert isinstance(recipe.image.build, Build)
    assert [step.run for step in recipe.image.build.steps][:2] == commands
    assert [note.partition(": line ")[2] for note in conversion.notes] == [
        f"4: pre_exec: {text}: done once, to the image" for text in commands
    ]
    assert any("sparkd image build" in step for step in conversion.steps) and not conversion.missing


def test_a_mod_with_a_long_line_takes_no_time(root: Path) -> None:
    add_mod(root / "mods/b", f"echo {' ' * 200_000}!\n{' ' * 200_000}!\n")
    started = time.process_time()
    imported(root, f"{V1}mods: [b]\n{SERVES}")
    assert time.process_time() - started < 5


def test_more_files_than_one_build_copies_are_missing(root: Path) -> None:
    for name in "abcd":
        add_mod(root / f"mods/{name}", "true\n", **{f"f{number}": "" for number in range(MOST_FILES - 1)})
    _, conversion = imported(root, f"{V1}mods: [a, b, c]\n{SERVES}")
    assert conversion.missing == ()
    assert len(conversion.files) == 3 * MOST_FILES
    recipe, conversion = imported(root, f"{V1}mods: [a, b, c, d]\n{SERVES}")
    assert "mods: left out: together more than the 1000 files and 64" in conversion.missing[0]
    assert conversion.files == {}
    assert recipe.image.ref == "vllm-node-own"


def test_another_content_gives_another_image(root: Path) -> None:
    script = add_mod(root / "mods/b", "true\n") / "run.sh"
    text = f"{V1}mods: [b]\n{SERVES}"
    first = imported(root, text)[0].image.ref
    assert imported(root, text)[0].image.ref == first
    script.write_text("false\n")
    assert imported(root, text)[0].image.ref != first


@pytest.mark.parametrize(
    "name",
    [
        *("@eugr/mods/x", "../outside", "/etc", "mods/../../outside", "a\nRUN id", 'a"]', "$(id)", "-x", ".", ""),
        *({"a": 1}, "b/" * 9),
    ],
)
def test_a_mod_outside_of_the_recipes_tree_is_named_and_left_out(root: Path, name: object) -> None:
    add_mod(root.parent / "outside", "true\n")
    _, result = imported(root, f"{V1}mods: {[name]!r}\n{SERVES}".replace("\\n", "\\\\n"))
    assert result.files == {}
    assert "mods: " in result.notes[0]
    assert result.notes[0].isprintable()


def give_away(*paths: Path) -> None:
    for path in paths:
        os.chown(path, 64000, -1)


@pytest.mark.parametrize("spoil", [
    lambda mod, secret: (mod / "x").symlink_to(secret / "run.sh"),
    lambda mod, secret: (mod / "x").symlink_to(secret),
    lambda mod, secret: mod.rename(mod.with_name("c")).with_name("b").symlink_to(secret),
    lambda mod, _: os.mkfifo(mod / "x"),
    lambda mod, _: (mod / "x\nRUN id").touch(),
    lambda mod, _: [(mod / f"{number}").touch() for number in range(MOST_FILES)],
    lambda mod, _: mod.parent.chmod(0o777),  # anybody may have put it there
    lambda mod, _: mod.chmod(0o777),
    lambda mod, _: (mod / "run.sh").chmod(0o777),
    *(pytest.param(spoil, marks=pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")) for spoil in (
        lambda mod, _: give_away(mod / "run.sh"),
        lambda mod, _: give_away(mod, mod / "run.sh"),
        # A user has put a folder of root's in its place since it was looked at.
        lambda mod, _: give_away(mod.parents[1] / "recipes/given.yaml"),
    )),
])  # fmt: skip
def test_a_mod_of_others_or_with_a_link_or_an_odd_file_is_left_out(
    root: Path, spoil: Callable[[Path, Path], object]
) -> None:
    (root / "recipes/given.yaml").touch()
    spoil(add_mod(root / "mods/b", "true\n"), add_mod(root.parent / "secret", "true\n"))
    _, result = imported(root, f"{V1}mods: [b]\n{SERVES}")
    assert result.files == {}
    assert len(result.notes) == 1


def test_a_folder_that_changes_while_a_mod_is_looked_at_ends_the_look(root: Path) -> None:
    """A user exchanges it and a link: the way to it no longer leads over its tree."""
    add_mod(root / "mods/b", "true\n")
    real_paths = iter((root / "mods/b", Path("/")))

    class Exchanged(type(root)):  # type: ignore[misc]  # of this machine's kind
        def resolve(self, strict: bool = False) -> Path:
            return next(real_paths) if self.name == "b" else super().resolve(strict)

    assert find_mod("b", None, Exchanged(root / "mods")).name == "b"


def test_a_folder_that_anybody_may_write_in_gives_no_mods(root: Path) -> None:
    add_mod(root / "mods/b", "true\n")
    root.chmod(0o1777)
    (root / "recipes").chmod(0o755)
    assert imported(root, f"{V1}mods: [b]\n{SERVES}")[1].files == {}
    assert imported(root, f"{V1}mods: [b]\n{SERVES}", root / "mods")[1].files, "a folder that is named is trusted"


@pytest.mark.parametrize("reference", ["@r/a", "@r/mods/a"])
def test_a_mod_of_a_registry_is_found_in_its_own_copy(root: Path, reference: str) -> None:
    add_mod(root / "mods/a", "true\n")
    _, result = imported(root, f"{V2}mods: ['{reference}']\n{SERVES}")
    assert result.missing == ()
    assert len(result.files) == 1


def test_a_recipe_without_a_file_finds_no_mods(root: Path) -> None:
    text = f"{V1}mods: [b]\n{SERVES}"
    add_mod(root / "mods/b", "true\n")
    result = convert.import_text(text, Path("x.yaml"), {}, (), Place(), None)
    assert "it is not beside the recipe" in result.notes[-1]
    with pytest.raises(ConfigError, match=r"x\.yaml: line 1: "):
        convert.import_text("[", Path("x.yaml"), {}, (), Place(), None)
