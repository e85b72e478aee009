"""`image.build`: what a recipe may say of how its image is built, and the Dockerfile that it becomes."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.unit.git_repositories import URL, make_repositories, served_from

from sparkd.base.config import Settings
from sparkd.base.lib.errors import ConfigError
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import Node
from sparkd.base.recipes.image import LONGEST_RUN, MOST_STEPS, Build
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.schema import Recipe, json_schema

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GIT = {"git": "https://github.com/deepseek-ai/DeepGEMM.git", "commit": COMMIT, "to": "/opt/DeepGEMM"}
MINIMAL_RECIPE = {"schema": 1, "name": "r", "model": {"path": "m"}}


def load(folder: Path, build: object, ref: str = "mine:1") -> Recipe:
    document = {**MINIMAL_RECIPE, "image": {"ref": ref, "build": build}}
    (folder / "r.yaml").write_text(json.dumps(document))  # which is YAML, too
    return load_recipe(str(folder / "r.yaml"), [folder]).recipe


def build(folder: Path, *steps: object) -> Build:
    made = load(folder, {"from": "base:1", "steps": steps}).image.build
    assert isinstance(made, Build)
    return made


def test_each_step_is_one_line_whatever_is_in_it(tmp_path: Path) -> None:
    hostile = "echo a \\\n\nRUN echo b\nFROM scratch # \u2028 \\"
    env = {"A": 'a "b" \\', "PATH": "/opt/env/bin:$PATH"}
    made = build(tmp_path, {"run": hostile}, {"copy": "mods/fix", "to": "/workspace/fix"}, {"env": env}, GIT)
    base, run, copy, variables, git = made.dockerfile("sha256:1").splitlines()
    assert base == "FROM sha256:1"
    assert json.loads(run.removeprefix("RUN ")) == ["/bin/bash", "-eo", "pipefail", "-c", hostile]
    assert json.loads(copy.removeprefix("COPY ")) == ["mods/fix", "/workspace/fix"]
    assert variables == r'ENV A="a \"b\" \\" PATH="/opt/env/bin:$PATH"'
    assert json.loads(git.removeprefix("RUN "))[-3:] == ["/opt/DeepGEMM", GIT["git"], COMMIT]


@pytest.mark.parametrize(
    ("step", "needle"),
    [
        ({}, "steps.[0] = {}: must be one of: run; copy and to; git, commit and to; env"),
        ({"run": "a", "env": {"A": "b"}}, "must be one of"),
        ({"env": {}}, "must be one of"),
        ({"run": "a", "to": "/x"}, "must be one of"),
        ({"copy": "x"}, "must be one of"),
        ({"git": GIT["git"], "to": "/x"}, "must be one of"),
        ({"run": " "}, "must be commands for bash"),
        ({"run": "x" * (LONGEST_RUN + 1)}, f"of at most {LONGEST_RUN} letters"),
        ({"run": "\u00e9" * LONGEST_RUN}, "is too long"),
        ({"env": {f"A{number}": "x" * 4000 for number in range(17)}}, "is too long"),
        ({"run": "a\0b"}, "NUL"),
        ({"add": "x"}, "there is no such key"),
        ({"copy": "../secret", "to": "/x"}, "must be the path of a file or folder beside the recipe's file"),
        ({"copy": "/etc/shadow", "to": "/x"}, "must be the path"),
        ({"copy": "a/../../b", "to": "/x"}, "must be the path"),
        ({"copy": ".ssh/id", "to": "/x"}, "must be the path"),
        ({"copy": "a*", "to": "/x"}, "must be the path"),
        ({"copy": "a\n", "to": "/x"}, "must be the path"),
        ({"copy": "a", "to": "x"}, "must be an absolute path"),
        ({"copy": "a", "to": "/$HOME"}, "must be a path without $"),
        ({**GIT, "git": "https://user:secret@github.com/a/b"}, "must be a repository by https"),
        ({**GIT, "git": "ext::sh -c id"}, "must be a repository by https"),
        ({**GIT, "git": "--upload-pack=id"}, "must be a repository by https"),
        ({**GIT, "commit": "main"}, "must be a whole commit"),
        ({**GIT, "commit": COMMIT[:12]}, "must be a whole commit"),
        ({"env": {"A B": "c"}}, "must be the name of a variable"),
        ({"env": {"A": "b\nRUN id"}}, "must be plain letters on one line"),
    ],
)
def test_what_no_step_may_be(tmp_path: Path, step: object, needle: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(tmp_path, step)
    assert needle in caught.value.reason
    assert "image.build.steps.[0]" in caught.value.reason, "no tag of the two forms is in the key"


@pytest.mark.parametrize(
    ("made", "ref", "needle"),
    [
        ({"from": "base", "steps": []}, "mine", "image.build.steps"),
        ({"from": "base", "steps": [{"run": "a"}] * (MOST_STEPS + 1)}, "mine", "image.build.steps"),
        ({"from": "", "steps": [{"run": "a"}]}, "mine", "image.build.from"),
        ({"from": "a b", "steps": [{"run": "a"}]}, "mine", "image.build.from"),
        ({"steps": [{"run": "a"}]}, "mine", "image.build.from is missing"),
        ({"from": "base", "steps": [{"run": "a"}]}, "base", "must be a name of its own"),
        ({"from": "base", "steps": [{"run": "a"}]}, "mine@sha256:" + "0" * 64, "must be a name of its own"),
        (7, "mine", "image.build = 7: must be"),
    ],
)
def test_what_no_build_may_be(tmp_path: Path, made: object, ref: str, needle: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, made, ref)
    assert needle in caught.value.reason


def test_the_hint_of_a_missing_image_is_the_command_or_the_text(tmp_path: Path) -> None:
    steps = {"from": "base", "steps": [{"run": "true"}]}
    hints = [load(tmp_path, build).image_build("r") for build in (steps, "make mine", "")]
    assert hints == ["sudo sparkd image build r", "make mine", ""]
    recipe, path = load(tmp_path, steps), "/root/my own/r.yaml"
    settings = Settings().model_copy(update={"engine": Settings().engine.model_copy(update={"recipe": path})})
    hint = make_plan(recipe, settings, Node(0, "", "", 1, "")).image_build
    assert hint == "sudo sparkd image build '/root/my own/r.yaml'", "a name is not searched there"
    assert recipe.image_build("/root/other.yaml") == "sudo sparkd image build r"


def test_a_recipe_that_is_written_out_reads_back_the_same(tmp_path: Path) -> None:
    recipe = load(tmp_path, {"from": "base", "steps": [GIT, {"run": "true"}, {"copy": "a", "to": "/a"}]})
    written = recipe.model_dump(mode="json", by_alias=True)
    assert written["image"]["build"]["steps"][1:] == [{"run": "true"}, {"copy": "a", "to": "/a"}], "no empty keys"
    assert Recipe.model_validate(written) == recipe
    assert "steps" in json_schema()


def test_a_git_step_checks_out_one_commit_with_its_submodules_and_names_one_that_is_gone(tmp_path: Path) -> None:
    commit, out = make_repositories(tmp_path / "repositories"), tmp_path / "out"
    env = {**os.environ, **served_from(str(tmp_path / "repositories"))}

    def check_out(commit: str) -> subprocess.CompletedProcess[str]:
        (step,) = build(tmp_path, {"git": f"{URL}outer", "commit": commit, "to": str(out)}).steps
        words = json.loads(step.instruction().removeprefix("RUN "))
        return subprocess.run(words, env=env, capture_output=True, text=True, check=False)

    done = check_out(commit)
    assert done.returncode == 0, done.stderr
    assert ((out / "file").read_text(), (out / "inner/file").read_text()) == ("wanted", "below")
    done = check_out(COMMIT)
    assert done.returncode == 1
    lost = f"sparkd: {URL}outer does not give commit {COMMIT}: where its branch was rebased the commit is gone"
    assert lost in done.stderr
