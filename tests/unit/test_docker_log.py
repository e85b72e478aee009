from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.host.docker import FRAME_LIMIT_BYTES, DockerUnreadableError, frames


def frame(stream: int, data: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40))),
    st.integers(min_value=1, max_value=17),
)
def test_frames_come_out_as_they_were_written_however_they_are_cut(sent: list[tuple[int, bytes]], size: int) -> None:
    raw = b"".join(frame(stream, data) for stream, data in sent)
    chunks = (raw[at : at + size] for at in range(0, len(raw), size))
    assert list(frames(chunks)) == sent


def test_a_frame_cut_off_by_the_end_is_no_frame() -> None:
    assert list(frames(iter([frame(1, b"whole"), frame(2, b"cut off")[:-1]]))) == [(1, b"whole")]


def test_what_is_no_frame_is_refused_before_it_is_waited_for() -> None:
    header = bytes([1, 0, 0, 0]) + (FRAME_LIMIT_BYTES + 1).to_bytes(4, "big")
    with pytest.raises(DockerUnreadableError):
        list(frames(iter([header])))
