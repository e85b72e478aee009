"""`sparkd model check`: whole files, and the hashes that Hugging Face's client keeps."""

from hashlib import sha256
from pathlib import Path

import pytest
from tests.tree import Tree

from sparkd.base.host import Host
from sparkd.tools.cli import main, model

SHARD = "model.safetensors"


def filled(folder: Path) -> bytes:
    """A whole model; what its one shard says."""
    tree = Tree(folder)
    tree.file("/config.json", "{}")
    tree.file("/tokenizer.json", "{}")
    return tree.safetensors(f"/{SHARD}", 64).read_bytes()


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A folder that `hf download --local-dir` has filled."""
    folder = tmp_path / "model"
    shard = filled(folder)
    kept = Tree(folder)
    kept.file(f"/.cache/huggingface/download/{SHARD}.metadata", f"{40 * 'c'}\n{sha256(shard).hexdigest()}\n1.5\n")
    kept.file("/.cache/huggingface/download/config.json.metadata", f"{40 * 'c'}\n{40 * '1'}\n1.5\n")
    return folder


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """A snapshot in Hugging Face's cache."""
    root = tmp_path / "models--org--name"
    snapshot = root / "snapshots" / (40 * "c")
    shard = filled(snapshot)
    name = sha256(shard).hexdigest()
    (root / "blobs").mkdir()
    (snapshot / SHARD).rename(root / "blobs" / name)
    (snapshot / SHARD).symlink_to(f"../../blobs/{name}")
    return snapshot


@pytest.mark.parametrize("kind", ["local", "cached"])
def test_files_that_are_as_they_were_downloaded_are_good(
    kind: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = request.getfixturevalue(kind)
    assert main.main(["model", "check", f"{folder}/"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{folder}: 1 shard, ")
    assert shown.out.endswith("as they were downloaded, by SHA-256: 1 of its files\n")
    assert not shown.err, "progress is for terminals"


@pytest.mark.parametrize("kind", ["local", "cached"])
def test_a_byte_that_has_changed_is_found_unless_only_sizes_are_checked(
    kind: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = request.getfixturevalue(kind)
    with (folder / SHARD).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    assert main.main(["model", "check", str(folder), "--quick"]) == 0
    capsys.readouterr()
    assert main.main(["model", "check", str(folder)]) == 10
    reason, *hints = capsys.readouterr().err.splitlines()
    assert f"{SHARD} is not what was downloaded: another SHA-256" in reason
    assert hints[0] == f"hint: sudo rm {folder / SHARD}", "and never what a link leads to"
    assert hints[1].startswith("hint: sudo sparkd model pull ")


@pytest.mark.parametrize("kind", ["gone", "unreadable"])
def test_files_that_cannot_be_read_are_named_each(local: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As on a disk that fails: the error of a read has no name."""
    for name in ("first.bin", "second.bin"):
        if kind == "gone":
            (local / name).symlink_to("nowhere")
        else:
            (local / name).mkdir()
        Tree(local).file(f"/.cache/huggingface/download/{name}.metadata", f"{40 * 'c'}\n{64 * 'a'}\n1.5\n")
    assert main.main(["model", "check", str(local)]) == 10
    reason, remove, *_ = capsys.readouterr().err.splitlines()
    assert "first.bin and 1 more is not what was downloaded: it can't be read: " in reason
    assert remove == f"hint: sudo rm {local / 'first.bin'} {local / 'second.bin'}"


def test_a_shard_that_is_cut_off_is_found_before_anything_is_read(
    local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (local / SHARD).write_bytes((local / SHARD).read_bytes()[:-1])
    assert main.main(["model", "check", str(local)]) == 10
    assert SHARD in capsys.readouterr().err


def test_the_configured_repository_is_downloaded_into_its_own_folder_alone(
    local: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = f"schema: 1\nname: mine\nimage: {{ref: i}}\nmodel: {{path: {local}, repo: org/b}}\n"
    tree = Tree(tmp_path)
    path = tree.file("/mine.yaml", recipe)
    monkeypatch.setenv("SPARKD_CONFIG", str(tree.file("/own.toml", f'[engine]\nrecipe = "{path}"\n')))
    filled(tmp_path / "other")
    for folder, repo in ((local, "org/b"), (tmp_path / "other", "ORGANISATION/NAME")):
        (folder / "config.json").unlink()
        assert main.main(["model", "check", str(folder)]) == 10
        assert (
            f"sudo sparkd model pull {repo} --to {folder}, or sparkd model sync {folder} on" in capsys.readouterr().err
        )


def test_a_model_without_recorded_hashes_is_checked_by_size_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path)
    assert main.main(["model", "check", str(tmp_path)]) == 0
    assert "no hashes to compare with" in capsys.readouterr().out


def test_a_folder_that_is_not_there_is_said_with_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["model", "check", str(tmp_path / "none")]) == 10
    errors = capsys.readouterr().err
    assert f"{tmp_path}/none is missing or empty" in errors
    assert errors.endswith(f"on a node that has it: sparkd model sync {tmp_path}/none\n")


def test_metadata_of_another_kind_is_no_hash(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (local / f".cache/huggingface/download/{SHARD}.metadata").write_bytes(b"\xff\n\xff\n")
    assert main.main(["model", "check", str(local)]) == 0
    assert "no hashes to compare with" in capsys.readouterr().out


def test_a_warning_names_a_model_that_a_program_reads(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model.warn_if_loading(str(local), Host())
    assert capsys.readouterr().err == ""
    with (local / SHARD).open("rb"):
        model.warn_if_loading(str(local), Host())
    assert capsys.readouterr().err == f"{local} is being loaded: that takes longer, and so does this\n"
