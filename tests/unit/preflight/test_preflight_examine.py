"""Checks that are run and judged together: the worst counts, and fixes are applied only if they clear all."""

import json
from enum import Enum
from typing import get_args

import pytest
from msgspec import Struct, field
from tests.tree import Tree
from tests.unit.preflight.findings import ALL, CACHE, DROP, END, GHOST, GOOD, REMOVE, STRAY, UNLINK, finding
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Check, Finding, Level, Verdict, warn
from sparkd.agent.preflight.fixes import ORDER, CompactMemory, EndProcess, Fix, by_start
from sparkd.agent.preflight.runner import (
    CHECKS,
    by_policy,
    check_ids,
    evidence,
    examine,
    fixes_to_apply,
    overall,
)
from sparkd.base.config.settings import ALL_FIXES, Preflight
from sparkd.base.host import Host
from sparkd.base.host.processes import OvergrownError
from sparkd.base.lib.errors import ConfigError

COMPACT = CompactMemory(80)


class Facts(Struct, frozen=True):
    found: int
    of: Level = Level.OK
    path: tuple[str, ...] = ()


class FailingCheck(Check[Facts], frozen=True):
    """Fails on request: in its probe, in its judge, or never."""

    at: str
    id = "sick"
    levels = (Level.BLOCK,)

    def probe(self, host: Host) -> Facts:
        if self.at == "probe":
            raise PermissionError(13, "Permission denied", "/proc/1/maps")
        return Facts(7, Level.WARN, ("a",))

    def judge(self, facts: Facts) -> Verdict:
        if self.at == "judge":
            raise ZeroDivisionError("a bug")
        return Verdict(Level.OK, "well")


class WarningCheck(FailingCheck, frozen=True):
    levels = (Level.WARN,)


class OvergrownCheck(Check[Facts], frozen=True):
    """Gives up on what this user has made too much of."""

    user: str
    id = "overgrown"
    levels = (Level.BLOCK,)

    def probe(self, host: Host) -> Facts:
        raise OvergrownError("more files than are read", self.user)

    def judge(self, facts: Facts) -> Verdict:
        return Verdict(Level.OK, "well")


SHM = finding("shared-memory", Level.WARN, UNLINK)
SCATTERED = finding("memory-fragmented", Level.WARN, COMPACT)
FOR_A_PERSON = Finding("x", Verdict(Level.BLOCK, "", fixes=(END,), clears=True, needs_person=True), {}, 0)


def short(shortage: int) -> Finding:
    return finding("unified-memory", Level.BLOCK, shortage=shortage)


@pytest.mark.parametrize("at", ["probe", "judge"])
def test_a_check_that_fails_to_look_is_unknown_and_the_others_run_all_the_same(tree: Tree, at: str) -> None:
    first, second, third = examine((FailingCheck(at), FailingCheck("never"), WarningCheck(at)), Host(tree.root))
    assert third.verdict.level is Level.WARN, "a check that only warns does not block when it fails"
    assert first.verdict.level is Level.UNKNOWN
    assert "could not look: " in first.verdict.reason
    assert second.verdict == Verdict(Level.OK, "well")
    assert second.facts == {"found": 7, "of": "warn", "path": ("a",)}


@pytest.mark.parametrize(("user", "shown"), [("milo", "milo"), ("uid 1000", "1000")])
def test_a_user_who_has_made_too_much_is_named_as_ps_takes_it(tree: Tree, user: str, shown: str) -> None:
    (finding_of_user,) = examine((OvergrownCheck(user),), Host(tree.root))
    assert finding_of_user.verdict.hint == f"end what makes them: ps -u {shown}"


@pytest.mark.parametrize(
    ("levels", "worst"),
    [
        ((), Level.OK),
        ((Level.OK, Level.WARN), Level.WARN),
        ((Level.UNKNOWN, Level.WARN), Level.UNKNOWN),
        ((Level.UNKNOWN, Level.BLOCK, Level.OK), Level.BLOCK),
    ],
)
def test_the_overall_verdict_is_the_worst(levels: tuple[Level, ...], worst: Level) -> None:
    assert overall([finding("x", level) for level in levels]) is worst


@pytest.mark.parametrize(
    ("findings", "fixes"),
    [
        pytest.param((GOOD,), (), id="nothing to do"),
        pytest.param((CACHE, SHM), (UNLINK, DROP), id="warnings alone, in order"),
        pytest.param((SCATTERED, CACHE), (DROP, COMPACT), id="memory is compacted once the page cache is gone"),
        pytest.param((CACHE, SHM, STRAY), (END, REMOVE, UNLINK, DROP), id="strays first"),
        pytest.param((CACHE, SHM, STRAY, GHOST), (), id="something that no fix clears holds all back"),
        pytest.param((STRAY, finding("x", Level.UNKNOWN)), (), id="so does an unknown one"),
        pytest.param((STRAY, SHM, short(100)), (END, REMOVE, UNLINK), id="together they free enough"),
        pytest.param((STRAY, SHM, short(101)), (), id="together they free too little"),
        pytest.param((CACHE, short(1)), (), id="page cache counts as available already"),
        pytest.param((finding("x", Level.BLOCK, END, clears=False),), (), id="fixes that are not enough"),
        pytest.param((FOR_A_PERSON,), (), id="a node that needs a person is not changed"),
    ],
)
def test_fixes_are_applied_only_if_they_clear_all_that_blocks(
    findings: tuple[Finding, ...], fixes: tuple[Fix, ...]
) -> None:
    assert fixes_to_apply(findings, ALL) == fixes


@pytest.mark.parametrize(
    ("allowed", "fixes"),
    [
        ((), ()),
        (("unlink-segment", "drop-page-cache"), ()),
        (("end-process", "drop-page-cache"), ()),
        (("end-process", "remove-container", "drop-page-cache"), (END, REMOVE, DROP)),
    ],
)
def test_a_fix_that_is_not_allowed_clears_nothing(allowed: tuple[str, ...], fixes: tuple[Fix, ...]) -> None:
    assert fixes_to_apply((CACHE, SHM, STRAY), allowed) == fixes
    assert fixes_to_apply((STRAY, SHM, short(100)), allowed) == (), "nor frees anything"


def test_a_downgraded_check_warns_and_keeps_its_words_and_fixes() -> None:
    changed, same = by_policy((STRAY, GHOST), Preflight(downgrade=("stray-workers",)))
    assert changed.verdict == warn(STRAY.verdict.reason, STRAY.verdict.hint, STRAY.verdict.fixes)
    assert same == GHOST


def test_the_hint_of_a_fix_that_is_not_allowed_has_the_commands_for_a_person() -> None:
    child = EndProcess(11, 2, "VLLM::Worker")
    findings = tuple(
        Finding("x", verdict, {}, 0)
        for verdict in (
            warn("", by_start("ends it"), (END, child, REMOVE), offers=((END, child),)),
            warn("", by_start("drops it"), (DROP,)),
            warn("", by_start("unlinks it"), (UNLINK,)),
            warn("", "of another problem", (DROP,)),
        )
    )
    leaves = "preflight.allow_fixes leaves it to a person:"
    assert [finding.verdict.hint for finding in by_policy(findings, Preflight(allow_fixes=()))] == [
        f"{leaves} sudo sparkd preflight --fix {END.pid}; sudo docker rm --force 0123456789ab",
        f"{leaves} sync && echo 3 | sudo tee /proc/sys/vm/drop_caches",
        f"{leaves} sudo rm {UNLINK.path}",
        "of another problem",
    ]
    assert by_policy(findings, Preflight()) == findings


def test_a_downgraded_check_offers_the_end_that_its_hint_names() -> None:
    living = Verdict(Level.BLOCK, "", f"stop it first: sudo sparkd preflight --fix {END.pid}", offers=((END,),))
    (changed,) = by_policy((Finding("stray-workers", living, {}, 0),), Preflight(downgrade=("stray-workers",)))
    expect(changed.verdict, Level.WARN, hint=living.hint, offers=living.offers)


def test_a_downgraded_check_needs_no_person_and_no_wait() -> None:
    unknown = Finding("gpu", Verdict(Level.UNKNOWN, "", needs_person=True, awaits="docker", shortage_bytes=5), {}, 0)
    (changed,) = by_policy((unknown,), Preflight(downgrade=("gpu",)))
    assert changed.verdict == warn("")


def test_an_id_that_no_check_has_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"preflight.skip names page-cash, which is no check.*page-cache"):
        check_ids(Preflight(skip=("page-cash",)))
    with pytest.raises(ConfigError, match=r"preflight.downgrade names x, which is no check"):
        check_ids(Preflight(downgrade=("x",)))
    check_ids(Preflight(skip=("resolver",), downgrade=("resolver",)))


class Odd(Enum):
    ONE = 1


class Deep(Struct, frozen=True):
    kind: Odd = Odd.ONE
    some: frozenset[int] = frozenset({1})
    table: dict[int, str] = field(default_factory=lambda: {1: "a"})
    other: object = None
    _hidden: int = 0


def test_evidence_is_json_whatever_the_facts_hold() -> None:
    encoded = json.dumps(evidence(Deep(other=complex(1, 2))))
    assert json.loads(encoded) == {"kind": 1, "some": [1], "table": {"1": "a"}, "other": "(1+2j)"}
    assert evidence(None) == {}


def test_what_may_change_a_machine_is_a_closed_list() -> None:
    kinds = [fix.kind for fix in get_args(Fix)]
    assert get_args(Fix) == ORDER, "every kind has its place among the others"
    assert tuple(kinds) == ALL_FIXES, "and can be forbidden in the settings"
    proposed = {kind for check in CHECKS for kind in check.fixes}
    assert proposed == set(kinds), "is declared by a check"
