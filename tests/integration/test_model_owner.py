"""`sparkd model pull` as root into a folder of a user's: it follows no link of theirs, and what it writes is theirs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.stranger import UID
from tests.integration.world import open_folder
from tests.unit.hub_server import REPO, Hub, serving

CONFIG = Path(__file__).parents[2] / "config/sparkd.toml"
FILES = {"config.json": b"{}", "model.safetensors": b"w" * 4096}


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub(dict(FILES))
    with serving(hub):
        yield hub


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder that a user owns, in one that everybody gets into."""
    folder = tmp_path / "models"
    folder.mkdir()
    os.chown(folder, UID, UID)
    return folder


def pull(hub: Hub, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HF_ENDPOINT": hub.endpoint, "SPARKD_CONFIG": str(CONFIG)}
    words = (sys.executable, "-m", "sparkd.tools.cli.main", "model", "pull", REPO, "--to", str(folder))
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)


def test_a_link_that_a_user_has_planted_is_of_no_use(hub: Hub, models: Path, tmp_path: Path) -> None:
    victim = tmp_path / "of-root"
    victim.write_text("root's")
    victim.chmod(0o600)
    folder = models / "m"
    downloads = folder / ".cache/huggingface/download"
    downloads.mkdir(parents=True)
    for given in (folder, folder / ".cache", folder / ".cache/huggingface", downloads):
        os.chown(given, UID, UID)
    assert pull(hub, folder).returncode == 10  # no model, by its files
    name = incomplete_name(folder, "model.safetensors", hub)
    for path in ("model.safetensors", ".cache/huggingface/download/model.safetensors.metadata"):
        (folder / path).unlink()
    (downloads / name).symlink_to(victim)
    done = pull(hub, folder)
    assert victim.read_text() == "root's"
    assert "Permission denied" in done.stderr
    assert done.returncode == 10


def incomplete_name(folder: Path, path: str, hub: Hub) -> str:
    from huggingface_hub._local_folder import get_local_download_paths

    return get_local_download_paths(folder, path).incomplete_path(hub.etag(path)).name


def test_written_files_belong_to_the_owner_of_the_folder(hub: Hub, models: Path) -> None:
    pull(hub, models / "m")
    written = [path for path in (models / "m").rglob("*") if path.is_file()]
    assert {path.name for path in written} > set(FILES)
    assert {(path.stat().st_uid, path.stat().st_gid) for path in written} == {(UID, UID)}


def test_files_of_roots_in_it_are_named_with_the_command_that_gives_them_away(hub: Hub, models: Path) -> None:
    """As an earlier version left them: with sudo, which root needs no more of, it would end the same way."""
    (models / "m/.cache").mkdir(parents=True)
    os.chown(models / "m", UID, UID)
    done = pull(hub, models / "m")
    assert done.returncode == 10
    assert done.stderr.splitlines()[-1] == f"hint: sudo chown -hR {UID}: {models}/m"


def test_a_folder_of_several_users_is_refused_with_the_command_that_repairs_it(hub: Hub, models: Path) -> None:
    os.chown(models, 0, 0)
    models.chmod(0o777)
    done = pull(hub, models / "m")
    assert (done.returncode, list(models.iterdir())) == (2, [])
    assert f"sudo chmod go-w {models}" in done.stderr


def test_a_folder_of_roots_is_written_as_before(hub: Hub, models: Path) -> None:
    os.chown(models, 0, 0)
    pull(hub, models / "m")
    assert (models / "m/config.json").stat().st_uid == 0
