"""`sparkd plot`: a real picture of what bench and soak print, and what is no such thing."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from sparkd.tools.cli.main import main
from sparkd.tools.measure.bench import Result
from sparkd.tools.measure.figures import Depth, Level, Spread
from sparkd.tools.measure.soak import Sample

RATE = Spread(40.0, 35.0, 44.0)
BENCH = Result(
    made="2026-11-23T10:00:00Z",
    node="spark1",
    recipe="tiny-cpu",
    model="$\\tiny",
    plan="d",
    version="1",
    prompt_tokens=64,
    answer_tokens=64,
    levels=(
        Level(1, "static", 3, 0, RATE, RATE, None, None, None),
        Level(4, "static", 3, 3, None, None, None, None, None),
    ),
    depths=(Depth(2048, 1.0, 2048.0, 30.0, 0.1), Depth(8192, 5.0, 1600.0, 25.0, 0.2)),
)
SAMPLES = [
    Sample(5.0 * n, {"spark1": (90 - n) << 30, "spark2": None}, 0, 0, None, None, n, 0, 100 * n) for n in range(9)
]
SOAK = {"schema": 1, "verdict": "steady", "lines": [], "interrupted": False, "samples": msgspec.to_builtins(SAMPLES)}


@pytest.mark.parametrize("content", [msgspec.to_builtins(BENCH), SOAK, {**SOAK, "samples": []}])
@pytest.mark.parametrize(("suffix", "begin"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_a_picture_is_drawn(content: dict[str, object], suffix: str, begin: bytes, tmp_path: Path) -> None:
    source, picture = tmp_path / "found.json", tmp_path / f"picture.{suffix}"
    source.write_text(json.dumps(content))
    assert main(["plot", str(source), str(picture)]) == 0
    drawn = picture.read_bytes()
    assert drawn.startswith(begin)
    assert len(drawn) > 5000


@pytest.mark.parametrize(
    ("content", "output", "said"),
    [
        ("{}", "x.svg", "no output of `sparkd bench --json`"),
        ("[" * 100_000, "x.svg", "no output of"),
        (json.dumps({**SOAK, "samples": [{"seconds": "\x1b[2J"}]}), "x.svg", "no output of"),
        ("{}", "x.pdf", "is no picture"),
    ],
)
def test_anything_else_is_refused_in_one_line(
    content: str, output: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "found.json"
    source.write_text(content)
    assert main(["plot", str(source), str(tmp_path / output)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
