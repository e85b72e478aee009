"""What an import leaves beside the recipe, and the commands that it prints: models, mods, templates, images, URLs."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sparkd.base.host import Host
from sparkd.base.host.docker_image import Image
from sparkd.base.lib.errors import ConfigError
from sparkd.base.recipes.image import Build
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.schema import Recipe
from sparkd.tools.cli import main, recipe_import
from sparkd.tools.importers import convert
from sparkd.tools.importers.bundle import Place
from sparkd.tools.importers.mods import MOST_FILES, find_mod
from sparkd.tools.models.image_build import read_sources

V1 = "recipe_version: '1'\nname: x\ncontainer: vllm-node-own\n"
V2 = "recipe_version: '2'\nmodel: o/m\ncontainer: r/i:1\n"
TEMPLATE = (
    '#!/bin/bash\nset -e\ncp chat.jinja $WORKSPACE_DIR/fixed.jinja\necho "=====> use --chat-template fixed.jinja"\n'
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """As eugr's tool has it: recipes, and mods beside their folder."""
    root = tmp_path / "tree"
    (root / "recipes").mkdir(parents=True)
    (root / "run-recipe.py").touch()
    return root


def add_mod(folder: Path, script: str, **files: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "run.sh").write_text(script)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def imported(tree: Path, text: str, mods: Path | None = None) -> tuple[Recipe, convert.Conversion]:
    path = tree / "recipes/given.yaml"
    path.write_text(text)
    result = convert.import_file(path, {}, (), Place(mods=mods))
    written = tree / "written.yaml"
    written.write_text(result.text)
    return load_recipe(str(written), []).recipe, result


def test_a_revision_and_a_draft_model_are_pulled(tree: Path) -> None:
    config = '{"method": "dflash", "model": "z-lab/M-DFlash", "num_speculative_tokens": 7}'
    text = f"{V2}model_revision: 60d8d70\ncommand: |\n  vllm serve {{model}} --speculative-config '{config}'\n"
    recipe, result = imported(tree, text)
    assert (recipe.model.repo, recipe.model.revision, recipe.model.path) == ("o/m", "60d8d70", "m")
    assert '"model": "/models/M-DFlash"' in str(recipe.args["speculative-config"])
    pulls = [step for step in result.steps if " model pull " in step]
    # By the file: a name would be judged by the recipe that the settings name now.
    assert pulls == [
        "sudo sparkd model pull /etc/sparkd/recipes/given.yaml",
        "sudo sparkd model pull z-lab/M-DFlash --to /srv/models/M-DFlash",
    ]
    assert (result.steps[0], result.notes) == ("sudo docker pull r/i:1", ())


def test_a_draft_has_a_revision_of_its_own_and_no_odd_one(tree: Path) -> None:
    for revision, ends in (
        ("v1", "model pull z/d --to /srv/models/d --revision v1"),
        ("; id", None),
        ("a\\u001b", None),
    ):
        config = f'{{"model": "z/d", "revision": "{revision}"}}'
        recipe, result = imported(tree, f"{V2}command: |\n  vllm serve o/m --speculative-config '{config}'\n")
        assert any(step.endswith(str(ends)) for step in result.steps) is bool(ends)
        assert ('"/models/d"' in str(recipe.args["speculative-config"])) is bool(ends)


def test_a_draft_that_is_the_model_itself_is_pulled_once(tree: Path) -> None:
    recipe, result = imported(tree, f"{V2}command: vllm serve o/m --speculative-config.model o/m\n")
    assert recipe.args == {"speculative-config.model": "/models/m"}
    assert len([step for step in result.steps if " model pull " in step]) == 1


def test_a_model_in_the_other_tools_cache_of_the_hub_is_pulled_at_its_revision(tree: Path) -> None:
    path = f"/cache/huggingface/hub/models--org--Name-1.5/snapshots/{'9e16' * 10}"
    recipe, result = imported(tree, f"{V2}command: vllm serve {path} --served-model-name n --hf-config-path {path}\n")
    assert (recipe.model.repo, recipe.model.path) == ("org/Name-1.5", "Name-1.5")
    assert recipe.model.revision == "9e16" * 10
    assert "sudo sparkd model pull /etc/sparkd/recipes/given.yaml" in result.steps
    assert [note.partition(": line ")[2] for note in result.notes] == [
        f"4: args.hf-config-path: {path}: sparkd mounts nothing there: add a volume, or change it"
    ]


def test_literal_exports_become_variables_and_others_are_named(tree: Path) -> None:
    own = "export NCCL_DEBUG=INFO VLLM_HOST_IP=$(hostname -I | cut -d' ' -f1)"  # sparkd sets the address on each node
    text = f"{V2}command: |\n  {own}\n  export A=1 B='x y'\n  export P=\"/x:$PATH\"\n  C=2 vllm serve o/m\n"
    recipe, result = imported(tree, text)
    wanted = {"A": "1", "B": "x y", "C": "2", "NCCL_DEBUG": "INFO"}  # the level is no node's own
    assert {name: recipe.env.get(name) for name in wanted} == wanted
    assert recipe.image.entrypoint[2] == 'export P=/x:$PATH; exec vllm serve "$@"'
    assert [note.partition("command: ")[2] for note in result.notes] == [
        "VLLM_HOST_IP: left out: sparkd sets what a node's rank needs"
    ]


def test_a_template_that_a_mod_only_copies_is_mounted(tree: Path) -> None:
    add_mod(tree / "mods/fix-chat", TEMPLATE, chat_jinja="{{ x }}")
    recipe, result = imported(tree, f"{V1}mods: [mods/fix-chat]\ncommand: vllm serve o/m --chat-template fixed.jinja\n")
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
def test_a_mod_that_does_anything_else_is_built(tree: Path, more: str) -> None:
    add_mod(tree / "mods/fix-chat", TEMPLATE + more, chat_jinja="{{ x }}")
    recipe, _ = imported(tree, f"{V1}mods: [fix-chat]\ncommand: vllm serve o/m --chat-template fixed.jinja\n")
    assert recipe.image.ref.startswith("localhost/given:")
    assert recipe.container.volumes == ()


def test_mods_become_steps_of_a_build_in_their_order(tree: Path) -> None:
    add_mod(tree / "mods/b", "patch -p1 < x.patch\n", x_patch="--- a\n")
    add_mod(tree / "recipes/a", "true\n")
    recipe, result = imported(tree, f"{V1}mods: [mods/b, a]\nbuild_args: [--tf5, 'a b']\ncommand: vllm serve o/m\n")
    build = recipe.image.build
    assert isinstance(build, Build)
    (folder,) = {name.partition("/")[0] for name in result.files}
    assert (build.base, [str(step) for step in build.steps]) == (
        "vllm-node-own",
        [
            f"copy {folder}/b to /workspace/mods/b",
            "run export WORKSPACE_DIR=$PWD && cd /workspace/mods/b && ./run.sh",
            f"copy {folder}/a to /workspace/mods/a",
            "run export WORKSPACE_DIR=$PWD && cd /workspace/mods/a && ./run.sh",
        ],
    )
    assert result.text.count("\n      - {") == 4, "a step is a line"
    assert {name: file.executable for name, file in result.files.items()} == {
        f"{folder}/a/run.sh": True,
        f"{folder}/b/run.sh": True,
        f"{folder}/b/x.patch": False,
    }
    by_hand = shlex.split(result.steps[0])
    assert by_hand[-4:] == ["-t", "vllm-node-own", "--tf5", "a b)"]
    assert "torch is built without CUDA" in str(recipe.image.asserts)
    assert result.steps[1] == "sudo sparkd image build /etc/sparkd/recipes/given.yaml"


PULLED, B12X = "eugr/spark-vllm:latest", "eugr/spark-vllm-b12x:latest"


@pytest.mark.parametrize(
    ("image", "words", "script", "pulled"),
    [
        ("vllm-node", [], "", PULLED),
        ("vllm-node-tf5", ["--tf5"], f'IMAGE="{PULLED}"\n', PULLED),
        ("vllm-node-b12x", [], "", B12X),
        ("vllm-node-mine", ["--exp-b12x"], "", B12X),
        ("vllm-node", ["--rebuild-vllm"], "", ""),
        ("vllm-node", ["--exp-b12x", "--apply-vllm-pr", "1"], "", ""),
        ("vllm-node-dsv4", [], "", ""),
        ("vllm-node", [], "docker build -t vllm-node .\n", ""),
        ("vllm-node", [], f"docker pull {PULLED}-of-a-fork\n", ""),
    ],
)
def test_an_image_that_the_tool_only_pulls_and_renames_is_pulled(
    tree: Path, image: str, words: list[str], script: str, pulled: str
) -> None:
    if script:
        (tree / "build-and-copy.sh").write_text(script)
    add_mod(tree / "mods/b", "true\n")
    recipe, result = imported(tree, f"{V1.replace('vllm-node-own', image)}mods: [b]\nbuild_args: {words}\n{SERVES}")
    assert isinstance(recipe.image.build, Build)
    assert recipe.image.build.base == (pulled or image)
    assert result.steps[0].startswith(f"sudo docker pull {pulled}") is bool(pulled)
    assert ("build-and-copy.sh" in result.steps[0]) is not bool(pulled)
    assert [pulled in note for note in result.notes] == [True] * bool(pulled)


def test_pre_exec_is_done_to_the_image_before_the_mods(tree: Path) -> None:
    add_mod(tree / "mods/b", "true\n")
    commands = ["pip install x", "sed -i s/a/b/ /usr/lib/vllm/models/y.py"]
    recipe, result = imported(tree, f"{V2}pre_exec: {commands}\nmods: [b]\n{SERVES}")
    assert isinstance(recipe.image.build, Build)
    assert [step.run for step in recipe.image.build.steps][:2] == commands
    assert [note.partition(": line ")[2] for note in result.notes] == [
        f"4: pre_exec: {text}: done once, to the image" for text in commands
    ]
    assert any("sparkd image build" in step for step in result.steps) and not result.missing


def test_what_sparkrun_has_built_by_eugrs_tool_is_built(tree: Path) -> None:
    _, result = imported(tree, f"{V2.replace('r/i:1', 'sparkrun-eugr-vllm-tf5')}{SERVES}")
    assert result.steps[0].endswith("./build-and-copy.sh -t sparkrun-eugr-vllm-tf5)") and not result.missing


def test_in_a_checkout_of_eugrs_tool_an_image_of_any_name_is_built_by_it(tree: Path) -> None:
    text = f"{V1.replace('vllm-node-own', 'mine')}{SERVES}"
    assert imported(tree, text)[1].missing
    (tree / "build-and-copy.sh").touch()
    _, result = imported(tree, text)
    assert (result.steps[0], result.missing) == (f"(cd {tree} && ./build-and-copy.sh -t mine)", ())
    assert imported(tree, f"{V2.replace('r/i:1', 'mine')}{SERVES}")[1].missing


@pytest.mark.parametrize("head", [V1, V2])
def test_keys_that_neither_tool_knows_are_named(tree: Path, head: str) -> None:
    text = f"{head}maintainer: a\npatches: [a.sh]\nvolumes: ['/a:/b']\n{SERVES}"
    _, result = imported(tree, text)
    notes = [note.partition(": line ")[2] for note in result.notes]
    assert "5: patches, volumes: left out: no key of eugr's tool or of sparkrun" in notes


def test_a_tokenizer_that_is_the_models_own_is_read_beside_it(tree: Path) -> None:
    recipe, result = imported(tree, f"{V2}command: vllm serve o/m --tokenizer o/m\n")
    assert (recipe.args["tokenizer"], result.missing) == ("/models/m", ())
    assert imported(tree, f"{V2}command: vllm serve o/m --tokenizer o/other\n")[1].missing


def test_build_arguments_are_found_where_sparkrun_keeps_them(tree: Path) -> None:
    text = f"{V2.replace('r/i:1', 'vllm-node')}runtime_config: {{build_args: [--rebuild-vllm]}}\n{SERVES}"
    assert imported(tree, text)[1].steps[0].endswith("./build-and-copy.sh -t vllm-node --rebuild-vllm)")


def image_here(*digests: str) -> Image:
    return Image("sha256:1", "arm64", "", 1, "", (), digests, ())


@pytest.mark.parametrize(
    ("ref", "digests", "base"),
    [
        ("mine:1", [], "mine:1"),
        ("vllm-node", [], "vllm-node"),
        ("mine:1", ["mine@sha256:" + "1" * 64], "mine:1"),  # containerd's store gives one to each image
        ("r/i:1", [], "r/i:1"),
        ("r/i:1", ["o/i@sha256:" + "1" * 64, "r/i@sha256:" + "2" * 64], "r/i@sha256:" + "2" * 64),
        ("docker.io/r/i:1", ["r/i@sha256:" + "2" * 64], "r/i@sha256:" + "2" * 64),
    ],
)
def test_an_image_that_is_here_is_neither_pulled_nor_built_and_its_digest_is_the_base(
    tree: Path, ref: str, digests: list[str], base: str
) -> None:
    add_mod(tree / "mods/b", "true\n")
    path = tree / "recipes/given.yaml"
    path.write_text(f"{V2.replace('r/i:1', ref)}mods: [b]\nbuild_args: [--tf5]\n{SERVES}")
    place = Place(find_image=lambda name: image_here(*digests) if name == ref else None)
    result = convert.import_file(path, {}, (), place)
    assert f"    from: {base}\n" in result.text.replace("'", "")
    assert (result.steps[0], result.notes) == ("sudo sparkd image build /etc/sparkd/recipes/given.yaml", ())


def test_a_mod_with_a_long_line_takes_no_time(tree: Path) -> None:
    add_mod(tree / "mods/b", f"echo {' ' * 200_000}!\n{' ' * 200_000}!\n")
    started = time.process_time()
    imported(tree, f"{V1}mods: [b]\n{SERVES}")
    assert time.process_time() - started < 5


@pytest.mark.parametrize(("tag", "vllm"), [("v0.29.0", "0.29"), ("latest", "")])
def test_a_built_image_keeps_the_release_of_what_it_is_made_from(tree: Path, tag: str, vllm: str) -> None:
    add_mod(tree / "mods/b", "true\n")
    recipe, _ = imported(tree, f"{V2.replace('r/i:1', f'vllm/vllm-openai:{tag}')}mods: [b]\n{SERVES}")
    assert recipe.image.vllm == vllm


def test_more_files_than_one_build_copies_are_missing(tree: Path) -> None:
    for name in "abcd":
        add_mod(tree / f"mods/{name}", "true\n", **{f"f{number}": "" for number in range(MOST_FILES - 1)})
    _, result = imported(tree, f"{V1}mods: [a, b, c]\n{SERVES}")
    assert (result.missing, len(result.files)) == ((), 3 * MOST_FILES)
    recipe, result = imported(tree, f"{V1}mods: [a, b, c, d]\n{SERVES}")
    assert "mods: left out: together more than the 1000 files and 64" in result.missing[0]
    assert (result.files, recipe.image.ref) == ({}, "vllm-node-own")


def test_another_content_gives_another_image(tree: Path) -> None:
    script = add_mod(tree / "mods/b", "true\n") / "run.sh"
    text = f"{V1}mods: [b]\ncommand: vllm serve o/m\n"
    first = imported(tree, text)[0].image.ref
    assert imported(tree, text)[0].image.ref == first
    script.write_text("false\n")
    assert imported(tree, text)[0].image.ref != first


@pytest.mark.parametrize(
    "name",
    [
        *("@eugr/mods/x", "../outside", "/etc", "mods/../../outside", "a\nRUN id", 'a"]', "$(id)", "-x", ".", ""),
        *({"a": 1}, "b/" * 9),
    ],
)
def test_a_mod_outside_of_the_recipes_tree_is_named_and_left_out(tree: Path, name: object) -> None:
    add_mod(tree.parent / "outside", "true\n")
    _, result = imported(tree, f"{V1}mods: {[name]!r}\ncommand: vllm serve o/m\n".replace("\\n", "\\\\n"))
    assert result.files == {}
    assert "mods: " in result.notes[0]
    assert result.notes[0].isprintable()


@pytest.mark.parametrize(
    "kind",
    (
        "file",
        "folder",
        "mod",
        "pipe",
        "name",
        "many",
        "owner",
        "mods",
        "mod of all",
        "file of all",
        "mod of another",
        "mod of root",
    ),
)
def test_a_mod_of_others_or_with_a_link_or_an_odd_file_is_left_out(tree: Path, kind: str) -> None:
    secret = tree.parent / "secret"
    add_mod(secret, "true\n")
    mod = tree / "mods/b"
    if kind == "mod":
        mod.parent.mkdir()
        mod.symlink_to(secret)
    else:
        add_mod(mod, "true\n")
    if kind in ("file", "folder"):
        (mod / "x").symlink_to(secret / "run.sh" if kind == "file" else secret)
    if kind == "owner":
        if os.geteuid():
            pytest.skip("root alone can give a file away")
        os.chown(mod / "run.sh", 64000, -1)
    if kind == "pipe":
        os.mkfifo(mod / "x")
    if kind == "name":
        (mod / "x\nRUN id").touch()
    for number in range(MOST_FILES + 1 if kind == "many" else 0):
        (mod / f"{number}").touch()
    if kind in ("mods", "mod of all", "file of all"):  # anybody may have put it there
        {"mods": mod.parent, "mod of all": mod, "file of all": mod / "run.sh"}[kind].chmod(0o777)
    if kind == "mod of another":
        if os.geteuid():
            pytest.skip("root alone can give a folder away")
        os.chown(mod, 64000, -1)
        os.chown(mod / "run.sh", 64000, -1)
    if kind == "mod of root":  # where a user has put a folder of root's in its place since it was looked at
        if os.geteuid():
            pytest.skip("root alone can give a file away")
        (tree / "recipes/given.yaml").touch()
        os.chown(tree / "recipes/given.yaml", 64000, -1)
    _, result = imported(tree, f"{V1}mods: [b]\ncommand: vllm serve o/m\n")
    assert (result.files, len(result.notes)) == ({}, 1)


def test_a_folder_that_changes_while_a_mod_is_looked_at_ends_the_look(tree: Path) -> None:
    """A user exchanges it and a link: the way to it no longer leads over its tree."""
    add_mod(tree / "mods/b", "true\n")
    real_paths = iter((tree / "mods/b", Path("/")))

    class Exchanged(type(tree)):  # type: ignore[misc]  # of this machine's kind
        def resolve(self, strict: bool = False) -> Path:
            return next(real_paths) if self.name == "b" else super().resolve(strict)

    assert find_mod("b", None, Exchanged(tree / "mods")).name == "b"


def test_a_folder_that_anybody_may_write_in_gives_no_mods(tree: Path) -> None:
    add_mod(tree / "mods/b", "true\n")
    tree.chmod(0o1777)
    (tree / "recipes").chmod(0o755)
    assert imported(tree, f"{V1}mods: [b]\ncommand: vllm serve o/m\n")[1].files == {}
    assert imported(tree, f"{V1}mods: [b]\ncommand: vllm serve o/m\n", tree / "mods")[1].files, (
        "a folder that is named is trusted"
    )


def test_hostile_words_stay_words(tree: Path) -> None:
    text = f"{V1}build_args: ['; touch /x; $(id)']\ncommand: vllm serve o/m\n"
    _, result = imported(tree, text)
    assert result.steps[0].endswith("-t vllm-node-own '; touch /x; $(id)')")
    _, result = imported(
        tree, f"{V2}container: nowhere\ncommand: vllm serve /cache/huggingface/hub/models--o--../snapshots/0123456\n"
    )
    assert result.steps[0].startswith("sparkd recipe check ")
    assert "no registry has it" in result.notes[1]
    _, result = imported(tree, text.replace("; touch", "\\u001b[2J").replace("'", '"'))
    assert "build_args: left out" in result.notes[0]


def test_what_is_written_is_whole_and_its_commands_name_it(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_mod(tree / "mods/b", "true\n")
    (tree / "recipes/given.yaml").write_text(f"{V1}mods: [b]\ncommand: vllm serve o/m -tp 2\n")
    folder = tree.parent / "to here \N{ROCKET}"
    folder.mkdir()
    words = ["recipe", "import", str(tree / "recipes/given.yaml"), "--write", str(folder)]
    assert main.main(words) == 0
    steps = printed(capsys)
    if os.geteuid() == 0:
        written = folder / "given.yaml"
        assert steps[1] == shlex.join(["sudo", "sparkd", "image", "build", str(written)])
        (copied,) = read_sources(str(written), Host()).files[0].values()
        assert (copied.content, copied.executable) == (b"true\n", True)
        assert chosen(steps) == "given", "a cluster has its recipe by name"
        assert (
            shlex.join(["sudo", "install", "-D", "-m", "644", str(folder / "given.yaml"), steps_path("given")]) in steps
        )
    assert "sparkd image sync" in steps
    assert main.main(words) == 78
    assert main.main([*words, "--force"]) == 0
    assert main.main([*words[:-1], str(folder / "none")]) == 78
    assert main.main(words[:3]) == 0
    assert "its files, 1: --write FOLDER leaves them" in capsys.readouterr().err


def steps_path(name: str) -> str:
    return f"/etc/sparkd/recipes/{name}.yaml"


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.partition(". ")[2] for line in capsys.readouterr().out.splitlines()[2:]]


def chosen(steps: list[str]) -> object:
    """The recipe that the printed step names in the settings."""
    (setting,) = [step for step in steps if "90-recipe.toml" in step]
    done = subprocess.run(["bash", "-c", setting.partition(" |")[0]], capture_output=True, text=True, check=True)
    return tomllib.loads(done.stdout)["engine"]["recipe"]


@pytest.fixture
def of_user() -> Iterator[Path]:
    """A folder of another user's, which they reach: pytest's own are closed to them."""
    with TemporaryDirectory(prefix="sparkd-of user-") as name:
        if os.geteuid() == 0:
            os.chown(name, 64000, 64000)
        yield Path(name)


def test_a_folder_that_is_not_roots_is_left_before_the_recipe_is_used(
    tree: Path, of_user: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_mod(tree / "mods/b", "true\n")
    given, folder = tree / "recipes/given.yaml", of_user
    given.write_text(f"{V1}mods: [b]\ncommand: vllm serve o/m -tp 2\n")
    assert main.main(["recipe", "import", str(given), "--write", str(folder)]) == 0
    steps = printed(capsys)
    copy = shlex.split(steps[0])
    assert copy[:7] == ["sudo", "mkdir", "-p", "/etc/sparkd/recipes", "&&", "sudo", "cp"]
    assert {Path(word) for word in copy[8:-1]} == {*folder.iterdir()}, "all that was written, there"
    assert (copy[-1], chosen(steps)) == ("/etc/sparkd/recipes/", "given")
    assert not any(str(folder) in step for step in steps[1:])


def test_only_what_is_forced_replaces_or_hides_anything(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = add_mod(tree / "mods/b", "true\n") / "run.sh"
    given, folder = tree / "recipes/given.yaml", tree.parent / "out"
    folder.mkdir()
    given.write_text(f"{V1}mods: [b]\ncommand: vllm serve o/m\n")
    (folder / "given.yaml").write_text("mine\n")
    words = ["recipe", "import", str(given), "--write", str(folder)]
    assert main.main(words) == 78
    assert [path.name for path in folder.iterdir()] == ["given.yaml"]
    assert "given.yaml: exists already" in capsys.readouterr().err
    assert main.main([*words, "--force"]) == 0
    (first,) = folder.glob("*.mods-*")
    script.write_text("false\n")
    assert main.main([*words, "--force"]) == 0
    assert f"{first}: of an earlier import" in capsys.readouterr().err
    shipped = given.rename(given.with_name("deepseek-v4-flash-balanced.yaml"))
    hides = "deepseek-v4-flash-balanced is a recipe of sparkd, which this one would hide"
    assert main.main([*words[:2], str(shipped), *words[3:]]) == 0
    assert f"{hides} in /etc/sparkd/recipes\n" in capsys.readouterr().err, "that folder is not searched"


def test_a_name_of_sparkds_own_is_refused_where_it_would_hide_that_recipe() -> None:
    hiding = convert.Conversion("deepseek-v4-flash-balanced", "", (), {}, (), ())
    with pytest.raises(ConfigError, match="is a recipe of sparkd, which this one would hide"):
        recipe_import.write(Place(), hiding, force=False)


@pytest.mark.parametrize(
    ("volume", "model", "path", "left"),
    [
        ("/data/foo:/x", "/x", "/data/foo", ["/x"]),  # flags may name a file in there
        ("/data/foo:/data/foo", "/data/foo", "/data/foo", []),
        ("/a/b:/x", "/x/m/n", "/a/b/m/n", ["/x"]),
        ("/a:/xy", "/x", "/x", ["/xy"]),
    ],
)
def test_a_model_in_a_mount_of_the_recipe_is_where_that_comes_from(
    tree: Path, volume: str, model: str, path: str, left: list[str]
) -> None:
    recipe, _ = imported(tree, f"{V2}executor_config: {{volumes: ['{volume}']}}\ncommand: vllm serve {model}\n")
    assert (recipe.model.path, [one.target for one in recipe.container.volumes]) == (path, left)


def test_a_mount_that_a_recipe_cannot_have_is_left_out_with_the_reason(tree: Path) -> None:
    _, result = imported(tree, f"{V2}executor_config: {{volumes: ['/d:/models/foo']}}\ncommand: vllm serve o/m\n")
    (note,) = result.notes
    assert note.endswith(
        "volumes: /d:/models/foo: left out: /models/foo in the container is sparkd's own: choose another"
    )


def test_what_the_other_nodes_need_comes_before_the_check(tree: Path) -> None:
    add_mod(tree / "mods/b", "true\n")
    draft = '{"model": "z/d"}'
    steps = imported(tree, f"{V2}mods: [b]\ncommand: |\n  vllm serve o/m -tp 2 --speculative-config '{draft}'\n")[
        1
    ].steps
    order = [
        "sparkd recipe check", "printf ", "sudo sparkd init --nodes 2", "sudo sparkd init --join",
        "rsync -a --relative --no-implied-dirs /etc/sparkd/recipes/given.mods-", "sparkd image sync",
        "sudo systemctl start sparkd-worker", "sudo systemctl start sparkd-head",
    ]  # fmt: skip
    at = [[step.startswith(words) for step in steps].index(True) for words in order]
    assert at == sorted(at)
    assert not any("cluster.nodes" in step for step in steps)
    assert [step.split()[3] for step in steps if step.startswith("sparkd model sync")] == ["m", "d"]
    steps = imported(tree, f"{V2}command: vllm serve {tree} -tp 2\n")[1].steps
    assert [step.split()[3] for step in steps if step.startswith("sparkd model sync")] == [str(tree)]


def test_what_a_workers_own_settings_must_allow_is_a_step(tree: Path) -> None:
    add_mod(tree / "mods/b", TEMPLATE, chat_jinja="{{ x }}")
    more = "mods: [b]\ncommand: vllm serve o/m -tp 2 --chat-template fixed.jinja\n"
    recipe, result = imported(tree, V1 + more)
    (step,) = [step for step in result.steps if "90-allow.toml" in step]
    done = subprocess.run(["bash", "-c", step.partition(" |")[0]], capture_output=True, text=True, check=True)
    mounts = [volume.source for volume in recipe.container.volumes]
    assert tomllib.loads(done.stdout) == {"cluster": {"allow": {"privileged": True, "mounts": mounts}}}


SERVES = "command: vllm serve o/m\n"
MISSING = {
    "mods: a: it is not beside the recipe: left out; import again with --mods FOLDER: a copy of the recipe's "
    "repository; for a mod of eugr's: git clone https://github.com/eugr/spark-vllm-docker, and import again with "
    "--mods spark-vllm-docker": f"{V2}mods: [a]\n{SERVES}",
    "mods: @r/a: it is not beside the recipe: left out; import again with --mods FOLDER: a copy of the registry "
    "r,": f"{V2}mods: ['@r/a']\n{SERVES}",
    "mods: @eugr/a: it is not beside the recipe: left out; git clone https://github.com/spark-arena/eugr-recipes, and "
    "import again with --mods eugr-recipes": f"{V2}mods: ['@eugr/a']\n{SERVES}",
    "git clone https://github.com/spark-arena/recipe-registry, and import again with --mods "
    "recipe-registry": f"{V2}mods: ['@experimental/a']\n{SERVES}",
    "pre_exec: x {port}: not run": f"{V2}pre_exec: ['x {{port}}']\n{SERVES}",
    "pre_exec: mkdir /cache/huggingface/x: not run": f"{V2}pre_exec: [y, mkdir /cache/huggingface/x]\n{SERVES}",
    'pre_exec: {"copy": "a", "dest": "/b"}: not run': f"{V2}pre_exec: [y, {{copy: a, dest: /b}}]\n{SERVES}",
    "pre_exec: x &: not run": f"{V2}pre_exec: ['x &']\n{SERVES}",
    "pre_exec: (x & ) && y: not run": f"{V2}pre_exec: ['(x & ) && y']\n{SERVES}",
    "pre_exec: x ~/.cache/y: not run": f"{V2}pre_exec: [x ~/.cache/y]\n{SERVES}",
    "pre_exec: x $A: not run": f"{V2}env: {{A: 1}}\npre_exec: [x $A]\n{SERVES}",
    "pre_exec: x --token ***: not run": f"{V2}pre_exec: [x --token s3cret]\n{SERVES}",
    "pre_exec: y: not run": f"{V2}pre_exec: {['y'] * 17}\n{SERVES}",
    "builder: not run: mine": f"{V2}builder: mine\n{SERVES}",
    "container: mine:1: no registry": f"{V2.replace('r/i:1', 'mine:1')}{SERVES}",
    "container: r/i:1-x86_64: is for x86_64": f"{V2.replace('r/i:1', 'r/i:1-x86_64')}{SERVES}",
    "it needs 16 nodes, and with sparkd at most 8": f"{V2}command: vllm serve o/m -tp 16\n",
    "executor_config.platform: left out: a Spark is arm64": f"{V2}executor_config: {{platform: linux/amd64}}\n{SERVES}",
    "its flags make 1 rank(s)": f"{V2}min_nodes: 2\n{SERVES}",
    "model: no repository": f"{V2}command: vllm serve /data/m\n",
    "args.chat-template: x.jinja: nothing makes": f"{V2}command: vllm serve o/m --chat-template x.jinja\n",
    "--enable-auto-tool-choice needs --tool-call-parser": f"{V2}command: vllm serve o/m --enable-auto-tool-choice\n",
    "command: not run: pip install x": f"{V2}command: |\n  pip install x\n  vllm serve o/m\n",
}


@pytest.mark.parametrize("lack", MISSING)
def test_what_leads_to_no_endpoint_says_so_and_what_is_missing(
    tree: Path, lack: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given, folder = tree / "recipes/given.yaml", tree.parent / "out"
    folder.mkdir()
    given.write_text(MISSING[lack])
    assert main.main(["recipe", "import", str(given), "--write", str(folder)]) == 10
    shown = capsys.readouterr().out
    first, _, missing = shown.partition("This does not lead to an endpoint yet. What is missing first:\n")
    assert first == f"{folder / 'given.yaml'}\n"
    assert lack in missing
    assert missing.endswith(f"\n  less {folder / 'given.yaml'}\n")
    assert "To an endpoint" not in shown + (folder / "given.yaml").read_text()


@pytest.mark.parametrize(
    "more",
    ["", "post_exec: [x]\n", "builder: docker-pull\n", "executor_config: {user: a}\n",
     "executor_config: {platform: linux/arm64}\n",
     "env: {TORCH_EXTENSIONS_DIR: /cache/huggingface/x, MINE_CACHE_DIR: /root/.cache/huggingface/y}\n"],
)  # fmt: skip
def test_what_the_engine_does_without_leaves_the_way_to_an_endpoint(tree: Path, more: str) -> None:
    path = tree / "recipes/given.yaml"
    path.write_text(f"{V2}{more}command: |\n  set -e\n  echo up\n  vllm serve o/m\n")
    assert main.main(["recipe", "import", str(path)]) == 0


@pytest.mark.parametrize("reference", ["@r/a", "@r/mods/a"])
def test_a_mod_of_a_registry_is_found_in_its_own_copy(tree: Path, reference: str) -> None:
    add_mod(tree / "mods/a", "true\n")
    _, result = imported(tree, f"{V2}mods: ['{reference}']\n{SERVES}")
    assert (result.missing, len(result.files)) == ((), 1)


@pytest.mark.parametrize(
    ("runtime", "flags", "executor", "noted"),
    [
        ("vllm-ray", "-tp 2 --distributed-executor-backend ray", "ray", False),
        ("vllm-ray", "", "mp", False),
        ("vllm", "-tp 2 --distributed-executor-backend=ray", "mp", True),
        ("vllm", "-tp 2 --distributed-executor-backend mp", "mp", False),
        ("vllm", "--distributed-executor-backend ray", "mp", False),
    ],
)
def test_ray_joins_the_nodes_where_the_recipe_is_for_it(
    tree: Path, runtime: str, flags: str, executor: str, noted: bool
) -> None:
    recipe, result = imported(tree, f"{V2}runtime: {runtime}\ncommand: vllm serve o/m {flags}\n")
    assert (recipe.executor, ["executor: ray has Ray" in note for note in result.notes]) == (executor, [True] * noted)


def test_what_no_registry_has_is_not_pulled_from_one(tree: Path) -> None:
    text = V2.replace("r/i:1", "localhost/b:1")
    _, result = imported(tree, f"{text}command: vllm serve o/m --tokenizer o/t --hf-config-path /x\n")
    assert not any("docker pull" in step for step in result.steps)
    assert [note.partition(": line ")[2] for note in result.notes] == [
        "3: container: localhost/b:1: no registry has it, nor is a build known: build it first",
        "4: args.tokenizer: o/t: the engine would fetch it: pull it, and name /models/t",
    ]


def test_a_recipe_without_a_file_finds_no_mods(tree: Path) -> None:
    text = f"{V1}mods: [b]\ncommand: vllm serve o/m\n"
    add_mod(tree / "mods/b", "true\n")
    result = convert.import_text(text, Path("x.yaml"), {}, (), Place(), None)
    assert "it is not beside the recipe" in result.notes[-1]
    with pytest.raises(ConfigError, match=r"x\.yaml: line 1: "):
        convert.import_text("[", Path("x.yaml"), {}, (), Place(), None)
