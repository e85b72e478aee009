"""Known-good starts: what is kept of them, and how later starts differ, likeliest cause first."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.known_good_entries import known_good_entry
from tests.unit.plans import HEAD, plan

from sparkd.base.host import Host, versions
from sparkd.base.plan.agreement import VALUE_WIDTH, Difference
from sparkd.base.state.facts import READ_FROM_NODE, Facts, excerpt_values, find_differences, group_files, node_values
from sparkd.base.state.known_good import FILE, KEPT, Entry, KnownGood, add_proven, images_to_keep, read_known_good
from sparkd.tools.node import known_good as command
from sparkd.tools.node.known_good import gather_facts

TEXTS = st.text(max_size=30)
TABLES = st.dictionaries(TEXTS, TEXTS, max_size=8)
NOTHING = Facts({}, {}, {})


def differing(then: dict[str, str], now: dict[str, str]) -> list[tuple[str, str, str]]:
    found = find_differences(replace(NOTHING, values=then), replace(NOTHING, values=now))
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


def test_the_difference_that_most_likely_matters_comes_first() -> None:
    names = (
        "args.dtype", "env.A", "image", "recipe", "image.identity", "weights.a", "script.sha256", "container.ipc",
        "caches.vllm", "node.model_folder", "cluster.size", "driver", "kernel", "docker", "sparkd", "boot.memory",
        "sysctl.vm.swappiness", "something.new",
    )  # fmt: skip
    versions, boot = ("driver", "kernel", "docker", "sparkd"), ("boot.memory", "sysctl.vm.swappiness")
    values = [name for name in reversed(names) if name not in (*versions, *boot)]

    def all_are(text: str) -> Facts:
        return Facts(dict.fromkeys(values, text), dict.fromkeys(versions, text), dict.fromkeys(boot, text))

    assert [difference.name for difference in find_differences(all_are("1"), all_are("2"))] == list(names)


def test_values_that_were_not_read_do_not_differ() -> None:
    then = replace(NOTHING, values={"image.identity": "i", "weights.a": "1", "script.sha256": "s", "args.x": "1"})
    now = replace(NOTHING, values={"args.x": "2"}, unseen=dict.fromkeys(READ_FROM_NODE, "docker is away"))
    assert [one.name for one in find_differences(then, now)] == ["args.x"]


def test_versions_and_facts_of_the_boot_differ_where_both_are_known() -> None:
    then = Facts({}, {"driver": "580", "docker": "29"}, {"boot.swap": "off", "sysctl.vm.swappiness": "10"})
    now = Facts({}, {"driver": "590", "kernel": "6.17"}, {"boot.swap": "/swap.img 16.0 GiB"})
    assert [one.name for one in find_differences(then, now)] == ["driver", "boot.swap"]


def test_many_files_of_weights_are_one_line() -> None:
    then = {f"weights.model-{number}": "5 bytes" for number in range(9)} | {"args.a": "1", "driver": "1"}
    now = {f"weights.model-{number}": "6 bytes" for number in range(9)} | {"args.a": "2", "driver": "2"}
    found = group_files(find_differences(replace(NOTHING, values=then), replace(NOTHING, values=now)))
    assert [one.name for one in found] == ["args.a", "weights", "driver"]
    assert found[1].theirs == "9 files differ: model-0, model-1, model-2 and 6 more"
    few = (Difference("weights.a", "1", "2"), Difference("weights.b", "1", "2"))
    assert group_files(few) == few


@given(then=TABLES, now=TABLES)
def test_every_difference_is_shown_in_short_lines(then: dict[str, str], now: dict[str, str]) -> None:
    found = group_files(find_differences(replace(NOTHING, values=then), replace(NOTHING, values=now)))
    assert not find_differences(replace(NOTHING, values=then), replace(NOTHING, values=then))
    for one in found:
        assert all(text.isprintable() and 0 < len(text) <= VALUE_WIDTH for text in excerpt_values(one))


def grown(*entries: Entry) -> tuple[Entry, ...]:
    known: tuple[Entry, ...] = ()
    for one in entries:
        known = add_proven(known, one).known_good
    return known


def test_a_plan_that_proves_itself_again_is_not_kept_twice() -> None:
    first, later = (
        known_good_entry(until="2026-01-01", since="2026-01-01"),
        known_good_entry(since="2026-02-02", until="2026-02-02"),
    )
    known = grown(first, known_good_entry("d2"), later)
    assert [one.plan_digest[:2] for one in known] == ["d1", "d2"]
    assert (known[0].since, known[0].until) == ("2026-01-01", "2026-02-02")
    assert len(add_proven(known, replace(first, image_id="sha256:f")).known_good) == 3, "another image is another start"


def test_eight_are_kept_the_newest_first_and_fewer_where_they_are_too_large() -> None:
    known = grown(*(known_good_entry(f"{number}-") for number in range(KEPT + 3)))
    assert [one.agreement_digest for one in known] == [f"a-{number}-" for number in range(KEPT + 2, 2, -1)]
    large = Facts({f"weights.{number}": "x" * 4000 for number in range(1500)}, {}, {})
    known = grown(*(known_good_entry(f"{number}-", facts=large) for number in range(4)))
    assert [one.agreement_digest for one in known] == ["a-3-", "a-2-"]
    larger = Facts({f"weights.{number}": "x" * 4000 for number in range(4500)}, {}, {})
    assert grown(*known[::-1], known_good_entry("9-", facts=larger)) == known, "one that is too large replaces nothing"


OLD = """{"schema": 1, "known_good": [{"since": "2026-01-01T00:00:00.000+00:00",
 "until": "2026-01-02T00:00:00.000+00:00", "plan": "d1", "agreement": "a1",
 "image_id": "sha256:e", "recipe": {"name": "x"}, "engine": {"recipe": "x"},
 "facts": {"values": {"args.x": "1"}, "versions": {"kernel": "6.17"}, "boot": {}, "unseen": {}}}]}"""


def test_what_was_written_is_read_also_of_the_version_before(tree: Tree) -> None:
    known = (known_good_entry(), known_good_entry("d2"))
    tree.file(FILE.path, FILE.encode(KnownGood(known)))
    assert read_known_good(Host(tree.root).files) == known
    assert FILE.mode == 0o600, "the section engine may hold what others must not see"
    written = json.loads(FILE.encode(KnownGood(known)))["known_good"][0]
    assert written.keys() == {*json.loads(OLD)["known_good"][0], "image_digest"}
    tree.file(FILE.path, OLD)
    (old,) = read_known_good(Host(tree.root).files)
    assert (old.plan_digest, old.facts.versions, old.name) == ("d1", {"kernel": "6.17"}, "x")


DIGEST = f"ghcr.io/x/vllm@sha256:{'a' * 64}"


@pytest.mark.parametrize(
    "digest",
    [
        *("x", "x@sha256:1", f"x; reboot@sha256:{'a' * 64}", f"X@sha256:{'a' * 64}"),
        *(DIGEST.replace("ghcr", "Registry"), f"[::1]:5000/{DIGEST}", f"{'x' * 255}{DIGEST}"),
    ],
)
def test_a_digest_that_is_not_for_a_shell_is_left_out_and_costs_no_history(tree: Tree, digest: str) -> None:
    reports: list[str] = []
    good, odd = known_good_entry(image_digest=DIGEST), known_good_entry("d2", image_digest=digest)
    assert (good.image_digest, odd.image_digest) == (DIGEST, "")
    for written in (
        FILE.encode(KnownGood((odd, good))),
        FILE.encode(KnownGood((good, good))).replace(DIGEST, digest, 1),
    ):
        tree.file(FILE.path, written)
        known = read_known_good(Host(tree.root).files, reports.append)
        assert [one.image_digest for one in known] == ["", DIGEST]
    assert reports == []


@pytest.mark.parametrize(
    ("written", "somebody_wrote"),
    [
        ("2026-01-01T", "x" * 5000), ("d1d1", "d1\\n"), ("sha256:", "../../containers/json?x=sha256:"),
        ("sha256:e", "sha256:\\ud800"), ('"6.17"', "6"), ("6.17", "x" * 5000),
        ('"known_good": [', '"known_good": [1, '),
        ('"values": {', '"values": {' + "".join(f'"{number}": "", ' for number in range(20_001))),
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_a_file_with_an_invalid_entry_is_reported_and_counts_as_empty(
    tree: Tree, written: str, somebody_wrote: str
) -> None:
    reports: list[str] = []
    tree.file(FILE.path, FILE.encode(KnownGood((known_good_entry(),))).replace(written, somebody_wrote))
    assert read_known_good(Host(tree.root).files, reports.append) == ()
    assert len(reports) == 1


def test_the_boot_is_read_without_what_names_the_kernels_place(tree: Tree) -> None:
    tree.file("/proc/cmdline", "BOOT_IMAGE=/vmlinuz-6.17 root=/dev/a quiet\x1b initrd=/x\n")
    tree.meminfo(MemTotal=119.5, MemFree=1, MemAvailable=1)
    tree.file("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/swap.img\tfile\t16777216\t0\t-2\n")
    tree.file("/proc/sys/vm/swappiness", "10\n")
    assert versions.read_boot(Host(tree.root), ("vm.swappiness", "vm.none")) == {
        "boot.command_line": "root=/dev/a quiet\\x1b",
        "boot.memory": "119.5 GiB",
        "boot.swap": "/swap.img 16.0 GiB",
        "sysctl.vm.swappiness": "10",
    }


def test_a_boot_without_facts_is_no_error(tree: Tree) -> None:
    tree.file("/proc/swaps", "Filename\nrubbish\n")
    assert versions.read_boot(Host(tree.root), ()) == {}


def test_values_of_the_node_itself_are_known() -> None:
    assert node_values(plan(HEAD)) == {
        "node.model_folder": "/srv/models/m",
        "node.interface": "bond0",
        "node.hcas": "rocep1s0f0,roceP2p1s0f0",
    }


def test_without_docker_and_model_the_unread_values_are_named(tree: Tree) -> None:
    seen = gather_facts(Host(tree.root), plan())
    assert seen.unseen["image.identity"] == "docker is away"
    assert "/srv/models/m can't be read" in seen.unseen["weights"]
    then = Facts({**dict(plan().shared), "image.identity": "i", "weights.a": "1", **node_values(plan())}, {}, {})
    assert find_differences(then, seen) == ()


def test_the_diff_names_flag_then_and_now(tree: Tree) -> None:
    tree.file("/srv/models/m/model.safetensors", "12345")
    last = known_good_entry(
        facts=Facts({**dict(plan().shared), **node_values(plan()), "weights.model.safetensors": "5 bytes"}, {}, {})
    )
    now = gather_facts(Host(tree.root), plan(args={"dtype": "half"}))
    lines = command.as_text(last, now).splitlines()
    assert lines[0].startswith("since the last known good start (recipe x, plan d1d1d1d1d1d1")
    assert [line.split() for line in lines[1:3]] == [["then", "now"], ["args.dtype", "-", "half"]]
    assert lines[3] == "not compared: image.identity: docker is away"
    assert len(lines) == 4
    shown = json.loads(command.as_json(last, now))
    assert shown["differences"] == [{"name": "args.dtype", "then": None, "now": "half"}]
    assert shown["known_good"]["plan"] == last.plan_digest
    assert json.loads(command.as_json(None, None))["known_good"] is None


def test_a_diff_without_differences_reports_that(tree: Tree) -> None:
    tree.file("/srv/models/m/model.safetensors", "12345")
    now = gather_facts(Host(tree.root), plan())
    last = known_good_entry(facts=replace(now, unseen={}))
    assert command.as_text(last, now).startswith("nothing that sparkd knows of differs from the last known good start")


def images(*numbers: int) -> tuple[Entry, ...]:
    return tuple(known_good_entry(str(at), image_id=f"sha256:{number}") for at, number in enumerate(numbers))


@pytest.mark.parametrize(
    ("known", "named", "pinned"),
    [((), (), ()), ((1,), (1,), (1,)), ((1, 1, 2), (1, 2), (1, 2)), ((3, 2, 3, 1), (3, 2, 1), (3, 2))],
)
def test_each_known_good_image_keeps_a_name_and_the_last_two_a_container(
    known: tuple[int, ...], named: tuple[int, ...], pinned: tuple[int, ...]
) -> None:
    found = images_to_keep(images(*known))
    assert found == tuple(tuple(f"sha256:{number}" for number in numbers) for numbers in (named, pinned))
    assert images_to_keep([known_good_entry(image_id="")]) == ((), ())


def test_a_proof_that_read_no_digest_keeps_the_one_that_is_known() -> None:
    digest = f"x/i@sha256:{'a' * 64}"
    proven = add_proven([known_good_entry(image_digest=digest)], known_good_entry()).known_good
    assert [entry.image_digest for entry in proven] == [digest]
    assert FILE.decode(FILE.encode(KnownGood(proven)).encode()).known_good == proven
