"""How many compilers a node's memory holds beside a rank's weights."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.plans import ALONE, HEAD, WORKER, configured, plan

from sparkd.base.host import Host
from sparkd.base.host.gpu import NO_GPU
from sparkd.base.lib.text import GIB
from sparkd.base.plan.compile_jobs import MOST_JOBS, CompileRoom, find_room, needed_bytes, read_room
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.plan.memory_sum import MemorySum
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.plan.rank_weights import RankWeights

SHARE = {"args": {"gpu-memory-utilization": 0.9}}
TWO_GPUS = {"nodes": {"max": 1, "gpus": 2}, "args": {"tensor-parallel-size": 2}}


def room(total_gib: float, weights_gib: float) -> CompileRoom:
    return CompileRoom(round(total_gib * GIB), round(weights_gib * GIB), 2 * GIB)


@pytest.mark.parametrize(
    ("total_gib", "weights_gib", "jobs"),
    [
        (121.6, 80.7, 2),  # DeepSeek-V4-Flash on each of two Sparks
        (121.6, 74, 3),
        (121.6, 40, 7),
        (121.6, 0, 16),  # the GPU has memory of its own
        (121.6, 105, 1),
        (59.6, 20, 2),  # a Spark of 64 GB
        (59.6, 45, 1),
        (264, 80.7, MOST_JOBS),
        (8, 20, 1),
    ],
)
def test_so_many_fit_beside_the_weights(total_gib: float, weights_gib: float, jobs: int) -> None:
    made = room(total_gib, weights_gib)
    assert made.jobs == jobs
    assert jobs == 1 or needed_bytes(jobs) <= made.room_bytes
    assert jobs == MOST_JOBS or needed_bytes(jobs + 1) > made.room_bytes


@pytest.mark.parametrize(("files_gib", "rank_gib"), [(69.4, 81.2), (100, 109.44)])
def test_what_is_loaded_takes_more_than_the_files_and_never_more_than_the_share(
    files_gib: float, rank_gib: float
) -> None:
    need = CheckInputs(plan(ALONE, **SHARE), configured()).need
    weights = RankWeights(round(files_gib * GIB), round(files_gib * GIB))
    beside = find_room(round(121.6 * GIB), MemorySum(0, weights, None, None, 1), need)
    assert beside.rank_bytes / GIB == pytest.approx(rank_gib, abs=0.01)


def test_it_shows_its_arithmetic() -> None:
    assert room(121.6, 80.7).describe() == (
        "2 at a time: 21.0 GiB at the worst, of 28.9 GiB beside weights of 80.7 GiB, the system (10 GiB) and headroom"
    )
    assert room(121.6, 105).describe().startswith("1 at a time: 11.0 GiB at the worst, more than the 4.6 GiB beside ")


@pytest.mark.parametrize(
    ("value", "wanted"), [("22", 22), ("3", 3), ("many", MOST_JOBS), ("-1", MOST_JOBS), (None, MOST_JOBS)]
)
def test_a_number_that_does_not_fit_is_named(value: str | None, wanted: int) -> None:
    excess = room(121.6, 80.7).describe_excess(plan(ALONE, env={"MAX_JOBS": value}, **SHARE))
    assert excess.startswith(f"on a cold cache {wanted} compilers at once (MAX_JOBS) take ")


def test_a_number_that_fits_is_no_excess() -> None:
    assert room(121.6, 80.7).describe_excess(plan(ALONE, env={"MAX_JOBS": "2"}, **SHARE)) == ""


def test_the_ranks_of_a_node_share_the_room() -> None:
    alone = room(121.6, 40)
    pair = replace(alone, ranks=2)
    assert [replace(alone, ranks=ranks).jobs for ranks in (1, 2, 8)] == [7, 3, 1]
    assert pair.describe().startswith("3 at a time in each of 2 ranks: 57.0 GiB at the worst, of 69.6 GiB beside ")
    shared = plan(ALONE, env={"MAX_JOBS": "6"}, **TWO_GPUS)
    assert pair.describe_excess(shared).startswith("on a cold cache 12 compilers at once (MAX_JOBS) take ")
    assert not alone.describe_excess(shared)


def test_each_node_has_its_own_number_under_one_digest() -> None:
    def made(jobs: str) -> LaunchPlan:
        return plan(replace(HEAD, compile_jobs=jobs), **SHARE)

    assert made("3").digest == made("22").digest == plan(WORKER, **SHARE).digest
    assert [dict(made(jobs).env)["MAX_JOBS"] for jobs in ("3", "22")] == ["3", "22"]
    assert dict(made("3").env)["FLASHINFER_NVCC_THREADS"] == "1"
    assert "export MAX_JOBS=3" in made("3").script


def test_a_recipes_own_number_is_kept_and_without_a_gpu_there_is_none() -> None:
    assert dict(plan(ALONE, env={"MAX_JOBS": "6"}, **SHARE).env)["MAX_JOBS"] == "6"
    assert "MAX_JOBS" not in dict(plan(ALONE, container={"gpus": "none"}).env)


def test_weights_that_are_not_known_count_as_the_whole_share(tree: Tree) -> None:
    tree.meminfo(MemTotal=121.6, MemFree=110, MemAvailable=110)
    host = Host(tree.root)
    host.gpu = lambda: replace(NO_GPU, names=("GB10",))
    beside = read_room(plan(ALONE, **SHARE), configured(), host)
    assert beside.jobs == 1
    assert "beside the rank's share of 109.4 GiB" in beside.describe()


def test_a_gpu_with_memory_of_its_own_leaves_the_machines_to_the_compilers(tree: Tree) -> None:
    tree.meminfo(MemTotal=121.6, MemFree=110, MemAvailable=110)
    host = Host(tree.root)
    host.gpu = lambda: replace(NO_GPU, names=("H100",), total_bytes=80 * GIB)
    assert read_room(plan(ALONE, **SHARE), configured(), host).jobs == 16
    assert read_room(plan(ALONE, **TWO_GPUS), configured(), host).jobs == 8
