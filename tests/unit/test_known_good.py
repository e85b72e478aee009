"""Known-good starts: what is kept of them, and what differs from them, by meaning and the likeliest cause first."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.test_plan import HEAD, configured, plan, recipe

from sparkd.commands import diff
from sparkd.host import Host, boot_facts
from sparkd.known_good import facts, history
from sparkd.known_good.facts import Facts, differences, gathered, own, shown
from sparkd.known_good.history import KEPT, PATH, Entry, dump, parse, proven
from sparkd.known_good.look import look
from sparkd.launch.agreement import Difference

TEXTS = st.text(max_size=30)
TABLES = st.dictionaries(TEXTS, TEXTS, max_size=8)
NOTHING = Facts({}, {}, {})


def entry(digest: str = "d1", **changes: object) -> Entry:
    made = Entry(
        since="2026-01-01T00:00:00.000+00:00",
        until="2026-01-01T00:00:00.000+00:00",
        plan=digest * 16,
        agreement=f"a-{digest}",
        image_id="sha256:" + "e" * 64,
        facts=Facts(dict(plan().shared), {"kernel": "6.17"}, {"boot.swap": "off"}),
        recipe=recipe().model_dump(mode="json", by_alias=True),
        engine=configured(engine={"recipe": "x"}).engine.model_dump(mode="json"),
    )
    return replace(made, **changes)


def differing(then: dict[str, str], now: dict[str, str]) -> list[tuple[str, str, str]]:
    found = differences(replace(NOTHING, values=then), replace(NOTHING, values=now))
    return [(one.name, one.own, one.theirs) for one in found]


@pytest.mark.parametrize(
    ("then", "now", "found"),
    [
        ({"args.max-model-len": "128K"}, {"args.max-model-len": "131072"}, []),
        ({"args.gpu-memory-utilization": "0.90"}, {"args.gpu-memory-utilization": "0.9"}, []),
        ({"args.no-enable-x": "true"}, {"args.enable-x": "false"}, []),
        ({"args.c": '{"a":1,"b":2}'}, {"args.c": '{"b": 2, "a": 1}'}, []),
        ({"unchecked.image": "i:1"}, {"image": "i:1"}, []),
        ({"args.x": "nan"}, {"args.x": "nan"}, []),
        ({"args.no-x": "true"}, {"args.x": "true"}, [("args.x", "false", "true")]),
        ({"args.dtype": "float32"}, {"args.dtype": "half"}, [("args.dtype", "float32", "half")]),
        ({}, {"args.seed": "1"}, [("args.seed", "", "1")]),
        ({"env.A": ""}, {}, [("env.A", '""', "")]),
    ],
)
def test_values_differ_by_what_they_mean(
    then: dict[str, str], now: dict[str, str], found: list[tuple[str, str, str]]
) -> None:
    assert differing(then, now) == found


def test_what_most_likely_matters_comes_first() -> None:
    names = (
        "args.dtype", "env.A", "image", "recipe", "image.identity", "weights.a", "script.sha256", "container.ipc",
        "caches.vllm", "node.model_folder", "cluster.size", "driver", "kernel", "docker", "sparkd", "boot.memory",
        "sysctl.vm.swappiness", "something.new",
    )  # fmt: skip
    versions, boot = ("driver", "kernel", "docker", "sparkd"), ("boot.memory", "sysctl.vm.swappiness")
    values = [name for name in reversed(names) if name not in (*versions, *boot)]
    then, now = (Facts(*(dict.fromkeys(one, text) for one in (values, versions, boot))) for text in "12")
    assert [one.name for one in differences(then, now)] == list(names)


def test_what_was_not_looked_at_does_not_differ() -> None:
    then = replace(NOTHING, values={"image.identity": "i", "weights.a": "1", "script.sha256": "s", "args.x": "1"})
    now = replace(NOTHING, values={"args.x": "2"}, unseen=dict.fromkeys(facts.LOOKED_AT, "docker is away"))
    assert [one.name for one in differences(then, now)] == ["args.x"]


def test_versions_and_facts_of_the_boot_differ_where_both_are_known() -> None:
    then = Facts({}, {"driver": "580", "docker": "29"}, {"boot.swap": "off", "sysctl.vm.swappiness": "10"})
    now = Facts({}, {"driver": "590", "kernel": "6.17"}, {"boot.swap": "/swap.img 16.0 GiB"})
    assert [one.name for one in differences(then, now)] == ["driver", "boot.swap"]


def test_many_files_of_weights_are_one_line() -> None:
    then = {f"weights.model-{number}": "5 bytes" for number in range(9)} | {"args.a": "1", "driver": "1"}
    now = {f"weights.model-{number}": "6 bytes" for number in range(9)} | {"args.a": "2", "driver": "2"}
    found = gathered(differences(replace(NOTHING, values=then), replace(NOTHING, values=now)))
    assert [one.name for one in found] == ["args.a", "weights", "driver"]
    assert found[1].theirs == "9 files differ: model-0, model-1, model-2 and 6 more"
    few = (Difference("weights.a", "1", "2"), Difference("weights.b", "1", "2"))
    assert gathered(few) == few


@given(then=TABLES, now=TABLES)
def test_every_difference_is_told_in_short_lines(then: dict[str, str], now: dict[str, str]) -> None:
    found = gathered(differences(replace(NOTHING, values=then), replace(NOTHING, values=now)))
    assert not differences(replace(NOTHING, values=then), replace(NOTHING, values=then))
    for one in found:
        assert all(text.isprintable() and 0 < len(text) <= facts.WIDTH for text in shown(one))


def test_a_plan_that_proves_itself_again_is_not_kept_twice() -> None:
    first = entry(until="2026-01-01", since="2026-01-01")
    known = proven(proven((), first), entry("d2"))
    again = proven(known, replace(first, since="2026-02-02", until="2026-02-02"))
    assert next((one.plan[:2], one.since, one.until) for one in again) == ("d1", "2026-01-01", "2026-02-02")
    assert len(again) == 2
    assert len(proven(again, replace(first, image_id="sha256:f"))) == 3, "another image is another start"


def test_eight_are_kept_the_newest_first() -> None:
    known: tuple[Entry, ...] = ()
    for number in range(KEPT + 3):
        known = proven(known, entry(f"{number}-"))
    assert [one.agreement for one in known] == [f"a-{number}-" for number in range(KEPT + 2, 2, -1)]


def test_what_was_written_is_read(tree: Tree) -> None:
    known = (entry(), entry("d2"))
    assert parse(dump(known)) == known
    tree.file(PATH, dump(known))
    assert history.read(Host(tree.root).files) == known


def test_what_is_too_large_loses_its_oldest() -> None:
    large = {f"weights.{number}": "x" * 4000 for number in range(1500)}
    known = tuple(entry(f"{number}-", facts=Facts(large, {}, {})) for number in range(4))
    text = dump(known)
    assert len(text) <= history.LIMIT_BYTES
    assert parse(text) == known[:2]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "[" * 100_000, '{"schema": 2, "known_good": []}', '{"schema": 1, "known_good": {}}',
        '{"schema": 1, "known_good": [1, {}, null]}',
        dump((entry(),)).replace('"kernel": "6.17"', '"kernel": 6'),
        dump((entry(since="x" * 5000),)),
        dump((entry(facts=Facts({"a": "x" * 5000}, {}, {})),)),
    ],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_bad_content_counts_as_empty(text: str) -> None:
    assert parse(text) == ()


@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_anything_is_read_without_a_traceback(text: str) -> None:
    assert parse(text) == ()


def test_no_file_and_one_that_is_none_are_an_empty_history(tree: Tree) -> None:
    files = Host(tree.root).files
    assert history.read(files) == ()
    tree.folder(PATH)
    assert history.read(files) == ()


def test_the_boot_is_read_without_what_names_the_kernels_place(tree: Tree) -> None:
    tree.file("/proc/cmdline", "BOOT_IMAGE=/vmlinuz-6.17 root=/dev/a quiet\x1b initrd=/x\n")
    tree.meminfo(MemTotal=119.5, MemFree=1, MemAvailable=1)
    tree.file("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/swap.img\tfile\t16777216\t0\t-2\n")
    tree.file("/proc/sys/vm/swappiness", "10\n")
    assert boot_facts.read(Host(tree.root), ("vm.swappiness", "vm.none")) == {
        "boot.command_line": "root=/dev/a quiet\\x1b",
        "boot.memory": "119.5 GiB",
        "boot.swap": "/swap.img 16.0 GiB",
        "sysctl.vm.swappiness": "10",
    }


def test_a_boot_that_tells_nothing_is_no_error(tree: Tree) -> None:
    tree.file("/proc/swaps", "Filename\nrubbish\n")
    assert boot_facts.read(Host(tree.root), ()) == {}


def test_what_a_node_fills_in_for_itself_is_known_of_it() -> None:
    assert own(plan(HEAD)) == {
        "node.model_folder": "/srv/models/m",
        "node.interface": "bond0",
        "node.hcas": "rocep1s0f0,roceP2p1s0f0",
    }


def test_a_look_without_docker_and_model_says_what_it_could_not_see(tree: Tree) -> None:
    seen = look(Host(tree.root), plan())
    assert seen.unseen["image.identity"] == "docker is away"
    assert "/srv/models/m can't be read" in seen.unseen["weights"]
    then = Facts({**dict(plan().shared), "image.identity": "i", "weights.a": "1", **own(plan())}, {}, {})
    assert differences(then, seen) == ()


def test_the_diff_names_flag_then_and_now(tree: Tree) -> None:
    tree.file("/srv/models/m/model.safetensors", "12345")
    last = entry(facts=Facts({**dict(plan().shared), **own(plan()), "weights.model.safetensors": "5 bytes"}, {}, {}))
    now = look(Host(tree.root), plan(args={"dtype": "half"}))
    lines = diff.as_text(last, now).splitlines()
    assert lines[0].startswith("since the last known good start (recipe x, plan d1d1d1d1d1d1")
    assert [line.split() for line in lines[1:3]] == [["then", "now"], ["args.dtype", "-", "half"]]
    assert lines[3] == "not compared: image.identity: docker is away"
    assert len(lines) == 4
    said = json.loads(diff.as_json(last, now))
    assert said["differences"] == [{"name": "args.dtype", "then": None, "now": "half"}]
    assert said["known_good"]["plan"] == last.plan
    assert json.loads(diff.as_json(None, None))["known_good"] is None


def test_a_diff_of_what_is_the_same_says_so(tree: Tree) -> None:
    tree.file("/srv/models/m/model.safetensors", "12345")
    now = look(Host(tree.root), plan())
    last = entry(facts=replace(now, unseen={}))
    assert diff.as_text(last, now).startswith("nothing that sparkd knows of differs from the last known good start")
