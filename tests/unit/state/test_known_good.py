"""known-good.json: which plans are kept, newest first, and which of their images."""

import json

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.known_good_entries import known_good_entry

from sparkd.base.host import Host
from sparkd.base.state.facts import Facts
from sparkd.base.state.known_good import FILE, KEPT, Entry, KnownGood, add_proven, images_to_keep, read_known_good


def prove(*entries: Entry) -> tuple[Entry, ...]:
    """What is kept after these plans have proven themselves one after the other."""
    known: tuple[Entry, ...] = ()
    for entry in entries:
        known = add_proven(known, entry).known_good
    return known


def test_a_plan_that_proves_itself_again_is_the_newest_and_not_kept_twice() -> None:
    first = known_good_entry(since="2026-01-01", until="2026-01-01")
    later = known_good_entry(since="2026-02-02", until="2026-02-02")
    other = known_good_entry("d2")
    assert prove(first, other, later) == (replace(later, since="2026-01-01"), other)


def test_a_plan_with_another_image_is_another_start() -> None:
    one_image, other_image = known_good_entry(), known_good_entry(image_id="sha256:f")
    assert prove(one_image, other_image) == (other_image, one_image)


def test_a_proof_that_read_no_digest_keeps_the_one_that_is_known() -> None:
    (entry,) = prove(known_good_entry(image_digest=DIGEST), known_good_entry())
    assert entry.image_digest == DIGEST


def test_eight_are_kept_the_newest_first() -> None:
    known = prove(*(known_good_entry(f"{number}-") for number in range(KEPT + 3)))
    assert [entry.agreement_digest for entry in known] == [f"a-{number}-" for number in range(KEPT + 2, 2, -1)]


def weighing(files: int) -> Facts:
    return Facts({f"weights.{number}": "x" * 4000 for number in range(files)}, {}, {})


def test_fewer_are_kept_where_they_are_too_large_and_one_that_is_too_large_replaces_nothing() -> None:
    known = prove(*(known_good_entry(f"{number}-", facts=weighing(1500)) for number in range(4)))
    assert [entry.agreement_digest for entry in known] == ["a-3-", "a-2-"]
    assert add_proven(known, known_good_entry("9-", facts=weighing(4500))).known_good == known


OLD = """{"schema": 1, "known_good": [{"since": "2026-01-01T00:00:00.000+00:00",
 "until": "2026-01-02T00:00:00.000+00:00", "plan": "d1", "agreement": "a1",
 "image_id": "sha256:e", "recipe": {"name": "x"}, "engine": {"recipe": "x"},
 "facts": {"values": {"args.x": "1"}, "versions": {"kernel": "6.17"}, "boot": {}, "unseen": {}}}]}"""


def test_what_was_written_is_read(tree: Tree) -> None:
    known = (known_good_entry(), known_good_entry("d2", image_digest=DIGEST))
    tree.file(FILE.path, FILE.encode(KnownGood(known)))
    assert read_known_good(Host(tree.root).files) == known
    assert FILE.mode == 0o600, "the section engine may hold what others must not see"


def test_a_file_of_an_earlier_version_is_read(tree: Tree) -> None:
    tree.file(FILE.path, OLD)
    (entry,) = read_known_good(Host(tree.root).files)
    assert entry.plan_digest == "d1"
    assert entry.facts.versions == {"kernel": "6.17"}
    assert entry.name == "x"


def test_an_earlier_version_reads_the_file() -> None:
    written = json.loads(FILE.encode(KnownGood((known_good_entry(),))))["known_good"][0]
    assert written.keys() == {*json.loads(OLD)["known_good"][0], "image_digest"}


DIGEST = f"ghcr.io/x/vllm@sha256:{'a' * 64}"


@pytest.mark.parametrize(
    "digest",
    [
        *("x", "x@sha256:1", f"x; reboot@sha256:{'a' * 64}", f"X@sha256:{'a' * 64}"),
        *(DIGEST.replace("ghcr", "Registry"), f"[::1]:5000/{DIGEST}", f"{'x' * 255}{DIGEST}"),
    ],
)
def test_a_digest_that_is_not_for_a_shell_is_left_out_and_costs_no_history(tree: Tree, digest: str) -> None:
    assert known_good_entry(image_digest=digest).image_digest == ""
    reports: list[str] = []
    good = known_good_entry(image_digest=DIGEST)
    tree.file(FILE.path, FILE.encode(KnownGood((good, good))).replace(DIGEST, digest, 1))
    assert read_known_good(Host(tree.root).files, reports.append) == (replace(good, image_digest=""), good)
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


@pytest.mark.parametrize(
    ("known", "named", "pinned"),
    [("", "", ""), ("1", "1", "1"), ("112", "12", "12"), ("3231", "321", "32")],
)
def test_each_known_good_image_keeps_a_name_and_the_last_two_a_container(known: str, named: str, pinned: str) -> None:
    """Each digit is the image of a plan."""
    entries = [known_good_entry(image_id=f"sha256:{digit}") for digit in known]
    names, containers = images_to_keep(entries)
    assert names == tuple(f"sha256:{digit}" for digit in named)
    assert containers == tuple(f"sha256:{digit}" for digit in pinned)


def test_a_plan_without_an_image_keeps_none() -> None:
    assert images_to_keep([known_good_entry(image_id="")]) == ((), ())
