"""`sparkd model pull`: which hub, which model and revision, which of its files, and into which folder."""

import os
from pathlib import Path

import pytest
from tests.unit.commands import Done
from tests.unit.hub_machine import SHARD, Machine, ended, partial_file
from tests.unit.hub_server import COMMIT, REPO, Hub

from sparkd.base.config import Settings
from sparkd.base.recipes.schema import Model
from sparkd.tools.models.hub_client import explain_error
from sparkd.tools.models.model_pull import ModelSource


def assert_refused(done: Done, code: int, text: str = "") -> None:
    """The command has ended with one error, which has the text."""
    assert done.returncode == code, done.stderr
    assert done.stderr.count("sparkd: ") == 1
    assert text in done.stderr


def test_files_may_be_left_out(machine: Machine) -> None:
    assert machine.pull(REPO, "--exclude", "original/*").returncode == 0
    assert not (machine.folder / "original").exists()
    assert (machine.folder / SHARD).exists()


def test_a_file_outside_of_the_folder_is_refused(machine: Machine, hub: Hub) -> None:
    hub.files["a/../../evil"] = b"x"
    done = machine.pull(REPO)
    assert_refused(done, 10, "outside of the model's folder")
    assert not machine.models.exists()


@pytest.mark.parametrize(
    "listing",
    [
        [],
        {"error": "maintenance"},
        {"id": REPO, "siblings": "none"},
        *(
            {"id": REPO, "sha": COMMIT, "siblings": [file]}
            for file in ({}, {"rfilename": 5}, {"rfilename": ""}, {"rfilename": "a\0"}, {"rfilename": "a\ud800"})
        ),
        {"id": REPO, "sha": COMMIT, "siblings": [{"rfilename": "a", "size": "1"}]},
    ],
)
def test_a_list_of_another_form_ends_with_one_error_line(machine: Machine, hub: Hub, listing: object) -> None:
    hub.listing = listing
    done = machine.pull(REPO)
    assert_refused(done, 10)
    assert done.stdout == ""


def test_an_etag_leads_nowhere_outside_of_the_folder(machine: Machine, hub: Hub) -> None:
    """It becomes a part of the partial file's name; a file of the same repository makes the folder that `..` leaves."""
    outside = machine.home / "precious.incomplete"
    outside.write_text("mine")
    folder = partial_file(machine.folder, "README.md", "x").with_suffix("")
    folder.mkdir(parents=True)
    hub.etags["README.md"] = f"x/{os.path.relpath(outside.with_suffix(''), folder)}"
    done = machine.pull(REPO)
    assert done.returncode == 10
    assert outside.read_text() == "mine"
    assert "there is no good ETag for README.md" in done.stderr


def test_a_mirrors_password_is_not_printed(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "https://user:geheim@mirror.example")
    assert "geheim" not in str(explain_error(OSError(), REPO))


def test_an_empty_word_behind_to_names_no_folder(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by `--to "$FOLDER"` with an unset variable: the working directory's files must not be replaced."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "README.md").write_text("mine")
    monkeypatch.chdir(own)
    assert machine.pull(REPO, "--to", "").returncode == 0
    assert [path.name for path in own.iterdir()] == ["README.md"]
    assert (machine.folder / SHARD).exists()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("HF_HUB_OFFLINE", "1", "HF_HUB_OFFLINE says to stay offline"),
        ("HF_ENDPOINT", "http://127.0.0.1:{port}", "http://127.0.0.1:{port} can't be reached"),
    ],
)
def test_a_hub_out_of_reach_ends_with_one_error_line(
    machine: Machine, port: int, name: str, value: str, text: str
) -> None:
    machine.env[name] = value.format(port=port)
    done = ended(machine.start(REPO))
    assert_refused(done, 10, text.format(port=port))
    by_sudo = f": sudo env HTTPS_PROXY=URL HF_ENDPOINT=URL sparkd model pull {REPO}\n"
    assert done.stderr.endswith(by_sudo) == (name == "HF_ENDPOINT"), "sudo keeps neither variable"
    assert not machine.models.exists()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("HF_ENDPOINT", "user:pass-word@127.0.0.1:1", "HF_ENDPOINT is no URL of https:// or http://"),
        ("HF_ENDPOINT", "http://user:pass-word", "HF_ENDPOINT is no URL of https:// or http://"),
        ("HF_ENDPOINT", "http://[::1", "HF_ENDPOINT is no URL of https:// or http://"),
        ("HF_ENDPOINT", "http://192.168.1.500:80", "HF_ENDPOINT is no URL of https:// or http://"),
        ("HTTP_PROXY", "http://user:pass-word", "a proxy of the environment is no URL"),
    ],
)
def test_an_address_that_is_no_url_is_refused_without_being_quoted(
    machine: Machine, name: str, value: str, text: str
) -> None:
    machine.env[name] = value
    done = ended(machine.start(REPO))
    assert done.returncode == 10
    assert done.stderr.splitlines()[0] == f"sparkd: {text}"
    assert "pass-word" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "env", "code", "text"),
    [
        (["org/other"], {}, 10, "has no model org/other"),
        (["name"], {}, 78, "there is no recipe name"),
        ([], {}, 78, "this node is not set up"),
        (["a b/c"], {}, 2, "a b/c is no name of a model on the hub"),
        (
            ["other/DeepSeek-V4-Flash"],
            {"SPARKD_ENGINE__RECIPE": "deepseek-v4-flash-balanced"},
            2,
            "is the folder of deepseek-ai/DeepSeek-V4-Flash, not of other/",
        ),
        (
            ["--to", "/srv/models/Other"],
            {"SPARKD_ENGINE__RECIPE": "deepseek-v4-flash-balanced"},
            2,
            "/srv/models/Other is not the folder of deepseek-ai/DeepSeek-V4-Flash, the configured model",
        ),
        ([], {"SPARKD_ENGINE__RECIPE": "tiny-cpu"}, 2, "recipe tiny-cpu does not say where its model is published"),
    ],
)
def test_each_refusal_ends_with_one_error_line(
    machine: Machine, words: list[str], env: dict[str, str], code: int, text: str
) -> None:
    done = machine.pull(*words, **env)
    assert_refused(done, code, text)
    assert not machine.models.exists()


def test_a_recipe_by_its_file_says_where_its_model_is_and_which_revision(machine: Machine, hub: Hub) -> None:
    recipe = machine.home / "mine.yaml"
    text = "schema: 1\nname: mine\nimage: {ref: i}\nmodel: {path: of-recipe, repo: org/name, revision: v1.0}\n"
    recipe.write_text(text)
    assert machine.pull(str(recipe), SPARKD_ENGINE__RECIPE="tiny-cpu").returncode == 0
    assert f"GET /api/models/{REPO}/revision/v1.0?blobs=true" in " ".join(hub.requests)
    assert (machine.models / "of-recipe" / SHARD).is_file()
    hub.requests.clear()
    assert machine.pull(str(recipe), "--revision", "v2").returncode == 0, "the option goes before the recipe"
    assert "/revision/v2?" in " ".join(hub.requests)


def test_the_recipes_model_in_lower_case_has_its_folder_and_revision() -> None:
    source = ModelSource("org/name", Model(path="of-recipe", repo="Org/Name", revision="v1.0"))
    assert source.revision == "v1.0"
    assert source.folder(Settings()) == f"{Settings().engine.models_dir}/of-recipe"
    other = ModelSource("org/other", source.model)
    assert other.revision is None
    assert other.folder(Settings()) == f"{Settings().engine.models_dir}/other"


def test_the_configured_model_needs_no_name_for_its_own_folder(machine: Machine) -> None:
    recipe, folder = machine.home / "mine.yaml", machine.models / "of-recipe"
    recipe.write_text("schema: 1\nname: mine\nimage: {ref: i}\nmodel: {path: of-recipe, repo: org/name}\n")
    assert machine.pull("--to", f"{folder}/", SPARKD_ENGINE__RECIPE=str(recipe)).returncode == 0
    assert (folder / SHARD).is_file()
    refused = machine.pull("--to", str(machine.models / "other"), SPARKD_ENGINE__RECIPE=str(recipe))
    assert f"sudo sparkd model pull ORGANISATION/NAME --to {machine.models}/other" in refused.stderr
