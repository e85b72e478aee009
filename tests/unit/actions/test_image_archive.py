"""An image's archive, as dockerd streams it, and the lock on the folder that it is saved in."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.unit.docker_server import STREAM, STREAM_END, answers, chunk, dockerd, json_response

from sparkd.agent.actions.image_archive import lock_scratch, read_archive
from sparkd.base.lib.dockerd.reader import DockerError
from sparkd.base.lib.errors import BlockedError


def test_an_image_is_saved_in_pieces() -> None:
    def answer(request: str) -> Iterable[bytes]:
        if request.endswith("/json"):
            yield from json_response({"Id": "sha256:1"})
            return
        yield STREAM
        yield from [chunk(b"t" * (1 << 20))] * 5
        yield STREAM_END

    with dockerd(answer) as path:
        assert sum(map(len, read_archive("a:1", path))) == 5 << 20


def test_an_image_that_is_missing_is_an_error() -> None:
    with dockerd(answers({})) as path, pytest.raises(DockerError, match="no such thing"):
        list(read_archive("a:1", path))


def test_two_copies_of_images_at_once_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "home/scratch"
    with lock_scratch(folder), pytest.raises(BlockedError, match="under way here"), lock_scratch(folder):
        pass
    with lock_scratch(folder):
        assert list(folder.iterdir()) == [], "nothing is left behind"
