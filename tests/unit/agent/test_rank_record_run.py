"""A run keeps a record of its rank for as long as the rank's container exists."""

import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.agent_runs import CONTAINER, World, end, open_world, run_agent
from tests.unit.docker_server import json_response, plain
from tests.unit.nodes import until

from sparkd.base.host import Host
from sparkd.base.lib.errors import ExitCode
from sparkd.base.state.rank_record import RANK_FILE, RankRecord, RankStage, read_rank

RECORD = "run/sparkd/private/rank.json"


class RecordedWorld(World):
    """Keeps the rank's record as it is at the first signal of the rank, and at each call of docker."""

    def __init__(self, tree: Tree, port: int) -> None:
        super().__init__(tree, port)
        self.record_at: dict[str, RankRecord | None] = {}
        self.refuses = False

    def record(self) -> RankRecord | None:
        return read_rank(Host(self.tree.root)).record

    def docker(self, request: str) -> Iterable[bytes]:
        method, path = plain(request).split()
        self.record_at.setdefault(path.rpartition("/")[2] if method == "POST" else method, self.record())
        if path.endswith("create") and self.refuses:
            return json_response({"message": "no space left"}, 500)
        return super().docker(request)

    def start(self) -> Iterable[bytes]:
        file = self.tree.root / RECORD
        note = f"trap 'cp {file} {file}.signalled; exit' TERM; while :; do sleep 0.05; done"
        self.rank = subprocess.Popen(["sh", "-c", note])
        return json_response({})


@pytest.fixture
def recorded() -> Iterator[RecordedWorld]:
    with open_world(RecordedWorld) as world:
        yield world


def test_the_rank_has_a_record_from_before_its_container_to_after_it(recorded: RecordedWorld) -> None:
    records: list[RankRecord | None] = []

    def stop() -> None:
        records.append(recorded.record())
        end()

    code, journal = run_agent(recorded, once={"serving": stop})
    assert code is ExitCode.GOOD, journal
    before, ready = recorded.record_at["create"], records[0]
    report = recorded.read("run/sparkd/report.json")
    assert before is not None and ready is not None and recorded.rank is not None
    assert before.rank_id == before.epoch == report["rank_id"] != report["incarnation"]
    assert before.invocation == report["incarnation"]
    assert before.stage is RankStage.STARTING
    assert before.container_id == ""
    assert before.pid == 0
    assert recorded.record_at["start"] == before
    completed = replace(before, container_id=CONTAINER, started_at="2026-01-01T00:00:00Z", pid=recorded.rank.pid)
    measured = {"start_time": ready.start_time, "stage": RankStage.READY}
    assert ready == replace(completed, **measured)
    assert ready.start_time > 0
    signalled = RANK_FILE.decode((recorded.tree.root / f"{RECORD}.signalled").read_bytes())
    assert signalled == replace(ready, stage=RankStage.ENDING)
    assert recorded.record_at["DELETE"] == signalled, "until its container is gone"
    assert not (recorded.tree.root / RECORD).exists()


def test_a_rank_that_could_not_be_kept_is_kept_once_there_is_room(recorded: RecordedWorld) -> None:
    """Else an agent that crashes or is reloaded later would end it."""
    stages: list[object] = []
    plan, record_file = (recorded.tree.root / f"run/sparkd/private/{name}.json" for name in ("rank-plan", "rank"))
    plan.mkdir(parents=True, mode=0o700)  # as where /run is full

    def make_room() -> None:
        record = recorded.record()
        stages.append(record and record.stage)
        record_file.unlink()
        record_file.mkdir(mode=0o700)
        plan.rmdir()
        until(plan.is_file, 20)
        time.sleep(0.5)  # and there is no room for the record, which is written next
        record_file.rmdir()
        until(lambda: (record := recorded.record()) is not None and record.stage is RankStage.READY, 20)
        stages.append(plan.is_file())
        end()

    code, journal = run_agent(recorded, once={"serving": make_room})
    assert code is ExitCode.GOOD, journal
    assert stages == [RankStage.STARTING, True], journal
    assert journal.count("state.write.failed file=rank-plan.json") == 1


def test_only_root_can_read_the_record(recorded: RecordedWorld) -> None:
    modes: list[int] = []
    file = recorded.tree.root / RECORD

    def stop() -> None:
        modes.extend(path.stat().st_mode & 0o777 for path in (file.parent, file))
        end()

    run_agent(recorded, once={"serving": stop})
    assert modes == [0o700, 0o600]


def test_a_launch_that_docker_refuses_leaves_no_record(recorded: RecordedWorld) -> None:
    recorded.refuses = True
    code, _ = run_agent(recorded)
    assert code is ExitCode.LAUNCH_FAILED
    assert recorded.record_at["create"] is not None
    assert not (recorded.tree.root / RECORD).exists()


@pytest.mark.parametrize("text", ["", '{"schema": 2}', '{"schema": 1, "rank_id": "r'])
def test_a_record_that_can_not_be_read_is_reported_and_set_aside(recorded: RecordedWorld, text: str) -> None:
    recorded.tree.file(f"/{RECORD}", text)
    recorded.refuses = True
    _, journal = run_agent(recorded)
    assert (recorded.tree.root / f"{RECORD}.broken").read_text() == text
    assert f"reason=\"/{RECORD} can't be read: " in next(line for line in journal.splitlines() if "state.read" in line)


def test_a_record_that_can_not_be_written_ends_no_engine(recorded: RecordedWorld) -> None:
    code, journal = run_agent(
        recorded, once={"loading": lambda: replace_by_folder(recorded.tree.root / RECORD), "serving": end}
    )
    assert code is ExitCode.GOOD, journal
    (failure,) = [line for line in journal.splitlines() if "state.write.failed" in line]
    assert "file=rank.json" in failure
    assert f'hint="sudo mv /{RECORD} /{RECORD}.folder"' in failure


def replace_by_folder(file: Path) -> None:
    file.unlink()
    (file / "in-the-way").mkdir(parents=True)
