"""Images of imported recipes: pulled, built by the tool of the recipe, or already here."""

import shlex
from pathlib import Path

import pytest
from tests.unit.published_recipes import SERVES, V1, V2, add_mod, imported

from sparkd.base.host.docker_image import Image
from sparkd.tools.importers import convert
from sparkd.tools.importers.bundle import Place

PULLED, B12X = "eugr/spark-vllm:latest", "eugr/spark-vllm-b12x:latest"


@pytest.mark.parametrize(
    ("image", "words", "pulled"),
    [
        ("vllm-node", [], PULLED),
        ("vllm-node-tf5", ["--tf5"], PULLED),
        ("vllm-node-b12x", [], B12X),
        ("vllm-node-mine", ["--exp-b12x"], B12X),
    ],
)
def test_an_image_that_the_tool_only_pulls_and_renames_is_pulled(
    root: Path, image: str, words: list[str], pulled: str
) -> None:
    recipe, result = imported(root, f"{V1.replace('vllm-node-own', image)}build_args: {words}\n{SERVES}")
    assert recipe.image.ref == pulled
    assert recipe.image.build == ""
    assert result.steps[0] == f"sudo docker pull {pulled}"
    (note,) = result.notes
    assert pulled in note


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("vllm-node", ["--rebuild-vllm"]),
        ("vllm-node", ["--exp-b12x", "--apply-vllm-pr", "1"]),
        ("vllm-node-dsv4", []),
        ("sparkrun-eugr-vllm-tf5", []),
    ],
)
def test_any_other_image_of_the_tool_is_built_by_it(root: Path, image: str, words: list[str]) -> None:
    _, result = imported(root, f"{V2.replace('r/i:1', image)}build_args: {words}\n{SERVES}")
    assert result.steps[0].endswith(f"./{shlex.join(['build-and-copy.sh', '-t', image, *words])})")
    assert result.notes == ()


@pytest.mark.parametrize(("named", "step"), [
    (f'IMAGE="{PULLED}"', f"sudo docker pull {PULLED}"), ("docker build -t vllm-node .", "(cd "),
    (f"docker pull {PULLED}-of-a-fork", "(cd "),
])  # fmt: skip
def test_a_copy_of_the_tool_decides_by_the_image_that_it_names(root: Path, named: str, step: str) -> None:
    (root / "build-and-copy.sh").write_text(f"{named}\n")
    assert imported(root, f"{V1.replace('vllm-node-own', 'vllm-node')}{SERVES}")[1].steps[0].startswith(step)


def test_in_a_checkout_of_eugrs_tool_an_image_of_any_name_is_built_by_it(root: Path) -> None:
    text = f"{V1.replace('vllm-node-own', 'mine')}{SERVES}"
    assert imported(root, text)[1].missing
    (root / "build-and-copy.sh").touch()
    _, result = imported(root, text)
    assert result.steps[0] == f"(cd {root} && ./build-and-copy.sh -t mine)"
    assert result.missing == ()
    assert imported(root, f"{V2.replace('r/i:1', 'mine')}{SERVES}")[1].missing


def test_build_arguments_are_found_where_sparkrun_keeps_them(root: Path) -> None:
    text = f"{V2.replace('r/i:1', 'vllm-node')}runtime_config: {{build_args: [--rebuild-vllm]}}\n{SERVES}"
    assert imported(root, text)[1].steps[0].endswith("./build-and-copy.sh -t vllm-node --rebuild-vllm)")


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
    root: Path, ref: str, digests: list[str], base: str
) -> None:
    add_mod(root / "mods/b", "true\n")
    path = root / "recipes/given.yaml"
    path.write_text(f"{V2.replace('r/i:1', ref)}mods: [b]\nbuild_args: [--tf5]\n{SERVES}")
    image = Image("sha256:1", "arm64", "", 1, "", (), tuple(digests), ())
    result = convert.import_file(path, {}, (), Place(find_image={ref: image}.get))
    assert f"    from: {base}\n" in result.text.replace("'", "")
    assert result.steps[0] == "sudo sparkd image build /etc/sparkd/recipes/given.yaml"
    assert result.notes == ()


@pytest.mark.parametrize(("tag", "vllm"), [("v0.29.0", "0.29"), ("latest", "")])
def test_a_built_image_keeps_the_release_of_what_it_is_made_from(root: Path, tag: str, vllm: str) -> None:
    add_mod(root / "mods/b", "true\n")
    recipe, _ = imported(root, f"{V2.replace('r/i:1', f'vllm/vllm-openai:{tag}')}mods: [b]\n{SERVES}")
    assert recipe.image.vllm == vllm


def test_what_no_registry_has_is_not_pulled_from_one(root: Path) -> None:
    text = V2.replace("r/i:1", "localhost/b:1")
    _, result = imported(root, f"{text}command: vllm serve o/m --tokenizer o/t --hf-config-path /x\n")
    assert not any("docker pull" in step for step in result.steps)
    assert [note.partition(": line ")[2] for note in result.notes] == [
        "3: container: localhost/b:1: no registry has it, nor is a build known: build it first",
        "4: args.tokenizer: o/t: the engine would fetch it: pull it, and name /models/t",
    ]
