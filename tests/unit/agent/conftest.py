"""Fixtures of an agent's tests."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.agent_runs import World, serving
from tests.unit.docker_server import dockerd
from tests.unit.engine_server import engine


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder, engine(serving) as port:  # tmp_path is too long for a socket
        made = World(Tree(Path(folder)), port)
        with dockerd(made.docker, f"{made.tree.root}/run/docker.sock"):
            yield made
        made.failing.set()
        if made.rank is not None:
            made.rank.kill()
            made.rank.wait()
