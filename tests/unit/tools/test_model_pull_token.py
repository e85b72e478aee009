"""`sparkd model pull`: the hub's token, from a private file to the hub alone."""

import os
from pathlib import Path

import pytest
from tests.unit.hub_machine import Machine
from tests.unit.hub_server import REPO, Hub, serving

TOKEN = "hf_secret"


@pytest.fixture
def closed_hub(hub: Hub) -> Hub:
    """Shows its model to those who have the token."""
    hub.token = TOKEN
    return hub


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    return file


def test_without_a_token_the_page_is_named_on_which_terms_are_accepted(machine: Machine, closed_hub: Hub) -> None:
    done = machine.pull(REPO)
    assert done.returncode == 10
    assert done.stderr.count("sparkd: ") == 1
    assert f"accept them at {closed_hub.endpoint}/{REPO}" in done.stderr


def test_a_token_file_that_others_can_read_is_refused(machine: Machine, closed_hub: Hub, token_file: Path) -> None:
    token_file.chmod(0o644)
    done = machine.pull(REPO, "--token-file", str(token_file))
    assert done.returncode == 2
    assert "chmod 600" in done.stderr
    assert "has mode 0644" in done.stderr


def test_a_fifo_is_no_token_file(machine: Machine, closed_hub: Hub, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    assert "is no regular file" in machine.pull(REPO, "--token-file", str(fifo)).stderr


def test_a_token_opens_the_hub_and_is_not_printed(machine: Machine, closed_hub: Hub, token_file: Path) -> None:
    done = machine.pull(REPO, "--token-file", str(token_file))
    assert done.returncode == 0
    assert TOKEN not in done.stdout + done.stderr


def test_a_token_does_not_go_to_where_the_hub_stores_its_files(
    machine: Machine, closed_hub: Hub, token_file: Path
) -> None:
    with serving(Hub(closed_hub.files)) as storage:
        closed_hub.moved_to = storage.endpoint.replace("127.0.0.1", "localhost")
        done = machine.pull(REPO, "--token-file", str(token_file))
    assert done.returncode == 0
    assert done.stderr == ""
    assert any(request.startswith("GET") for request in storage.requests)
    assert storage.tokens == {""}
