"""The model and the drafts of an imported recipe: pulled by name and revision, or taken from a mount."""

from pathlib import Path

import pytest
from tests.unit.published_recipes import V2, imported

from sparkd.base.recipes.schema import Model


def test_a_revision_and_a_draft_model_are_pulled(root: Path) -> None:
    config = '{"method": "dflash", "model": "z-lab/M-DFlash", "num_speculative_tokens": 7}'
    text = f"{V2}model_revision: 60d8d70\ncommand: |\n  vllm serve {{model}} --speculative-config '{config}'\n"
    recipe, conversion = imported(root, text)
    assert recipe.model == Model(path="m", repo="o/m", revision="60d8d70", served_name="o/m")
    assert '"model": "/models/M-DFlash"' in str(recipe.args["speculative-config"])
    pulls = [step for step in conversion.steps if " model pull " in step]
    # By the file: a name would be judged by the recipe that the settings name now.
    assert pulls == [
        "sudo sparkd model pull /etc/sparkd/recipes/given.yaml",
        "sudo sparkd model pull z-lab/M-DFlash --to /srv/models/M-DFlash",
    ]
    assert conversion.steps[0] == "sudo docker pull r/i:1"
    assert conversion.notes == ()


def serve_with_draft(revision: str) -> str:
    config = f'{{"model": "z/d", "revision": "{revision}"}}'
    return f"{V2}command: |\n  vllm serve o/m --speculative-config '{config}'\n"


def test_a_draft_is_pulled_at_its_own_revision(root: Path) -> None:
    recipe, result = imported(root, serve_with_draft("v1"))
    assert "sudo sparkd model pull z/d --to /srv/models/d --revision v1" in result.steps
    assert '"/models/d"' in str(recipe.args["speculative-config"])


@pytest.mark.parametrize("revision", ["; id", "a\\u001b"])
def test_a_draft_of_an_odd_revision_is_not_pulled(root: Path, revision: str) -> None:
    recipe, result = imported(root, serve_with_draft(revision))
    assert not any("model pull z/d" in step for step in result.steps)
    assert '"z/d"' in str(recipe.args["speculative-config"])


def test_a_draft_that_is_the_model_itself_is_pulled_once(root: Path) -> None:
    recipe, result = imported(root, f"{V2}command: vllm serve o/m --speculative-config.model o/m\n")
    assert recipe.args == {"speculative-config.model": "/models/m"}
    assert len([step for step in result.steps if " model pull " in step]) == 1


def test_a_model_in_the_other_tools_cache_of_the_hub_is_pulled_at_its_revision(root: Path) -> None:
    path = f"/cache/huggingface/hub/models--org--Name-1.5/snapshots/{'9e16' * 10}"
    recipe, result = imported(root, f"{V2}command: vllm serve {path} --served-model-name n --hf-config-path {path}\n")
    assert recipe.model == Model(path="Name-1.5", repo="org/Name-1.5", revision="9e16" * 10, served_name="n")
    assert "sudo sparkd model pull /etc/sparkd/recipes/given.yaml" in result.steps
    assert [note.partition(": line ")[2] for note in result.notes] == [
        f"4: args.hf-config-path: {path}: sparkd mounts nothing there: add a volume, or change it"
    ]


def test_a_tokenizer_that_is_the_models_own_is_read_beside_it(root: Path) -> None:
    recipe, result = imported(root, f"{V2}command: vllm serve o/m --tokenizer o/m\n")
    assert recipe.args == {"tokenizer": "/models/m"}
    assert result.missing == ()
    assert imported(root, f"{V2}command: vllm serve o/m --tokenizer o/other\n")[1].missing


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
    root: Path, volume: str, model: str, path: str, left: list[str]
) -> None:
    recipe, _ = imported(root, f"{V2}executor_config: {{volumes: ['{volume}']}}\ncommand: vllm serve {model}\n")
    assert recipe.model.path == path
    assert [mount.target for mount in recipe.container.volumes] == left
