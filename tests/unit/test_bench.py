"""The pure parts of the benchmark: what counts against a limit, what the table says, what of numbered lines is lost."""

import json

import pytest
from tests.bench import cluster, compare, containers, start, table
from tests.bench.figures import Beside, By, Figure, Limit, Spread
from tests.bench.lines import TEXT, Tally
from tests.bench.machine import Machine
from tests.bench.programs.simulated import Log, Result, State, latencies
from tests.bench.start import Start

MACHINE = Machine("1.2.3", 2, "a processor", "6.1")


def figure(runs: tuple[float, ...], limit: Limit | None = None, beside: Beside | None = None) -> Figure:
    return Figure("a.figure", "some work", "s", Spread(runs), limit, beside)


@pytest.mark.parametrize(
    ("runs", "limit", "passed"),
    [
        ((1.0, 1.0, 9.0), Limit(1.0), True),
        ((0.9, 1.1, 1.1), Limit(1.0), False),
        ((0.9, 1.0, 1.0), Limit(1.0, by=By.WORST), True),
        ((0.9, 1.0, 1.1), Limit(1.0, by=By.WORST), False),
        ((1.0, 5.0, 9.0), Limit(5.0, at_least=True), True),
        ((4.0, 4.9, 9.0), Limit(5.0, at_least=True), False),
        ((4.9, 9.0, 9.0), Limit(5.0, at_least=True, by=By.WORST), False),
        ((9.0, 9.0, 9.0), None, True),
    ],
)
def test_the_median_counts_unless_the_limit_wants_the_worst(
    runs: tuple[float, ...], limit: Limit | None, passed: bool
) -> None:
    assert figure(runs, limit).passed is passed


def test_nothing_measured_is_no_figure() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        Spread(())


@pytest.mark.parametrize(("beside", "ratio"), [((2.0, 4.0, 6.0), 0.5), ((0.0,), None)])
def test_a_ratio_is_of_the_medians(beside: tuple[float, ...], ratio: float | None) -> None:
    assert figure((1.0, 2.0, 9.0), beside=Beside("without", Spread(beside))).ratio == ratio


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0124, "0.0124"), (0.5, "0.5"), (21_008.4, "21,008"), (0, "0"), (3.0, "3"), (0.000012, "0.000012")],
)
def test_a_number_has_three_digits_that_mean_something(value: float, text: str) -> None:
    assert table.number(value) == text


def test_the_table_names_what_missed_its_limit() -> None:
    shown = table.as_text([figure((2.0,), Limit(1.0)), figure((0.5,), Limit(1.0)), figure((7.0,))], MACHINE)
    rows = [line for line in shown.splitlines() if line.startswith("some work")]
    assert [row.split()[-1] for row in rows] == ["FAIL", "pass", "1"]
    assert "1 of 2 limits missed" in shown


def test_the_json_has_every_run() -> None:
    beside = Beside("without", Spread((4.0,)))
    found = json.loads(table.as_json([figure((3.0, 1.0, 2.0), Limit(1.5), beside)], MACHINE, "now"))
    assert found["passed"] is False
    (one,) = found["figures"]
    assert (one["min"], one["median"], one["max"], one["runs"]) == (1.0, 2.0, 3.0, [3.0, 1.0, 2.0])
    assert (one["passed"], one["ratio"], one["beside"]["median"]) == (False, 0.5, 4.0)


def test_sparkds_share_is_what_lies_before_the_container_runs_and_after_it_could_serve() -> None:
    one = Start(requested=10.0, created=10.3, running=10.5, first_completion=40.0, ready=40.25)
    assert one.share == pytest.approx(0.75)
    shown = start.figures((one,), (Start(0.0, 0.1, 0.2, 25.0, 25.0),), load=0.0)
    share = next(figure for figure in shown if figure.id == "start.share")
    assert share.ratio == pytest.approx(0.03)


def written(*numbers: int) -> bytes:
    return b"".join(b"<6>engine| " + (TEXT % number).encode() + b"\n" for number in numbers)


def tallied(text: bytes, piece_bytes: int) -> Tally:
    tally = Tally()
    for at in range(0, len(text), piece_bytes):
        tally.feed(text[at : at + piece_bytes], now=1.0 + at)
    return tally


@pytest.mark.parametrize("piece_bytes", [1, 7, 200, 10_000])
def test_lines_are_counted_however_they_are_cut_into_pieces(piece_bytes: int) -> None:
    tally = tallied(b"<4>sparkd's own words\n" + written(*range(20)), piece_bytes)
    assert (tally.received, tally.out_of_order) == (20, 0)


@pytest.mark.parametrize(
    ("numbers", "received", "out_of_order"),
    [((0, 1, 3), 3, 1), ((0, 2, 1, 3), 4, 3), ((0, 1, 1, 2), 4, 1), ((1, 2), 2, 1)],
)
def test_a_lost_a_swapped_and_a_repeated_line_are_noticed(
    numbers: tuple[int, ...], received: int, out_of_order: int
) -> None:
    tally = tallied(written(*numbers), 64)
    assert (tally.received, tally.out_of_order) == (received, out_of_order)


def test_a_rank_without_sparkd_is_the_same_container() -> None:
    inspected = {
        "Created": "2026-01-01T00:00:00.123456789Z",
        "State": {"StartedAt": "2026-01-01T00:00:01Z"},
        "Config": {"Entrypoint": ["/bin/bash"], "Cmd": ["/run/launch.sh"], "Image": "sha256:abc"},
        "HostConfig": {
            "NetworkMode": "host",
            "IpcMode": "host",
            "Init": True,
            "Privileged": False,
            "LogConfig": {"Type": "local", "Config": {"max-size": "20m"}},
            "Mounts": [
                {"Type": "bind", "Source": "/a", "Target": "/b", "ReadOnly": True},
                {"Type": "bind", "Source": "/c", "Target": "/d"},
            ],
        },
    }
    found = containers.parse(json.dumps([inspected]), "bare")
    assert found.started - found.created == pytest.approx(0.876544)
    assert " ".join(found.argv) == (
        "docker run --detach --name bare --network host --ipc host --entrypoint /bin/bash --init"
        " --mount type=bind,source=/a,target=/b,readonly --mount type=bind,source=/c,target=/d"
        " --log-driver local --log-opt max-size=20m sha256:abc /run/launch.sh"
    )


def test_news_has_come_when_the_last_node_has_it() -> None:
    logs = [Log({"a": 1.0}, {"b": 2.5}), Log({"b": 2.0}, {"a": 1.25}), Log({}, {"a": 1.5, "b": 2.25})]
    assert latencies(logs) == (0.5, 0.5)


def test_a_message_that_a_node_has_not_seen_has_no_latency() -> None:
    assert latencies([Log({"a": 1.0}, {}), Log({}, {"a": 1.5}), Log({}, {})]) == ()


def simulated(nodes: int, *, cpu: float = 0.1, news: float = 0.01) -> Result:
    return Result(nodes, (1.0,) * nodes, None, State((cpu,) * nodes, 1.0, (0.001, news)))


@pytest.mark.parametrize("nodes", [2, 8])
@pytest.mark.parametrize(
    ("cpu", "news", "missed"), [(0.1, 0.01, []), (0.5, 0.01, ["cpu-serving"]), (0.1, 0.6, ["news"])]
)
def test_what_peers_cost_is_limited_where_nodes_serve(nodes: int, cpu: float, news: float, missed: list[str]) -> None:
    figures = cluster.of_result(simulated(nodes, cpu=cpu, news=news), 0.0)
    assert [one.id.rpartition(".")[2] for one in figures if not one.passed] == missed


def test_clusters_larger_than_serve_are_reported_without_a_limit() -> None:
    assert {one.limit for one in cluster.of_result(simulated(64, cpu=99.0), 0.0)} == {None}


@pytest.mark.parametrize(
    ("before", "after", "limit", "worse"),
    [
        ((1.0, 1.1, 1.2), (1.1, 1.3, 1.3), None, False),
        ((1.0, 1.1, 1.2), (1.3, 1.4, 1.4), None, True),
        ((1.0, 1.1, 1.2), (0.5, 0.6, 0.6), None, False),
        ((5.0, 5.1, 5.2), (4.0, 4.1, 4.2), Limit(1.0, at_least=True), True),
        ((5.0, 5.1, 5.2), (6.0, 6.1, 6.2), Limit(1.0, at_least=True), False),
        ((1.0,), (1.05,), None, False),
        ((1.0,), (1.2,), None, True),
    ],
)
def test_what_is_worse_is_so_by_more_than_either_spread(
    before: tuple[float, ...], after: tuple[float, ...], limit: Limit | None, worse: bool
) -> None:
    then, now = (json.loads(table.as_json([figure(runs, limit)], MACHINE, "")) for runs in (before, after))
    lines = compare.describe(then, now, "main")
    assert [line.startswith("worse: some work: ") for line in lines] == [True, False][not worse :]
    assert lines[-1].startswith(f"{int(worse)} of 1 figures worse than main")


def test_figures_of_another_machine_are_not_compared() -> None:
    now = json.loads(table.as_json([figure((9.0,))], MACHINE, ""))
    then = {**now, "machine": {**now["machine"], "cores": 64}}
    assert compare.describe(then, now, "main") == [
        "not compared with main: that is of 64 cores of a processor, and this of 2 cores of a processor"
    ]
    assert compare.describe(None, now, "figures.json") == ["nothing to compare with: no figures.json"]
