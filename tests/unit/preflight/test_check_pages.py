"""The manual of the checks holds what the checks declare: it is written by hand, and `--explain` prints its pages."""

import re
from textwrap import fill

import pytest
from tests.unit.commands import sparkd

from sparkd.agent.preflight.check import AnyCheck
from sparkd.agent.preflight.checks.shared_memory import KEEP_SERVICES
from sparkd.agent.preflight.runner import CHECKS, IDS
from sparkd.base.lib import read_data
from sparkd.base.lib.text import reflow
from sparkd.base.recipes.reach import REACHES
from sparkd.base.vllm.lint.predicates import HIGHEST_SHARE, MOST_POOLS
from sparkd.base.vllm.lint.rules import RULES

MANUAL = read_data("sparkd-checks.7.md").decode()
SECTIONS = MANUAL.partition("\n# CHECKS\n")[2].partition("\n# HOOKS\n")[0].split("\n## ")[1:]
PAGE = re.compile(
    r"(?P<id>[a-z-]+)\n\nLevels: (?P<levels>[^.]+)\. May fix: (?P<fixes>[^.]+)\. Reads: \S.+\. Known from: \S.+\.\n\n"
    r"```text\n(?P<text>.+?)\n```\n",
    re.DOTALL,
)
RULE = re.compile(r"  (block|warn) {2,3}([a-z-]+) +(\S.+)\n {28}(\S.+)")


def explained(check_id: str, columns: int = 120) -> str:
    done = sparkd("preflight", "--explain", check_id, COLUMNS=str(columns))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_check_has_a_page_and_every_page_a_check_in_the_order_of_preflight() -> None:
    assert [section.partition("\n")[0] for section in SECTIONS] == list(IDS)
    assert len(set(IDS)) == len(CHECKS)


@pytest.mark.parametrize("check", CHECKS, ids=IDS)
def test_a_page_has_the_levels_and_fixes_of_its_check_and_is_what_explain_prints(check: type[AnyCheck]) -> None:
    pages = [page for section in SECTIONS if (page := PAGE.fullmatch(section)) and page["id"] == check.id]
    assert len(pages) == 1, "a heading, one line of facts, and the text"
    (page,) = pages
    assert page["levels"] == ", ".join(level.value for level in check.levels)
    assert page["fixes"] == (", ".join(check.fixes) or "nothing")
    assert len(page["text"]) > 300
    text = RULE.sub("", page["text"])
    assert RULE.sub("", explained(check.id, 1000)).split() == f"{check.id}\n\n{text}\n".split()
    assert reflow(text, 120) == text, "a line is broken where 120 columns are full, or by intent"


@pytest.mark.parametrize("check_id", IDS)
def test_a_page_fits_a_terminal_of_80_columns(check_id: str) -> None:
    assert [line for line in explained(check_id, 80).splitlines() if len(line) > 80] == []


def test_the_page_of_plan_lint_has_every_rule_with_its_severity() -> None:
    rows = RULE.findall(explained("plan-lint", 1000))
    assert [(name, severity == "block") for severity, name, _, _ in rows] == [
        (rule.name, rule.blocks) for rule in RULES
    ]
    matched = {name: what for _, name, what, _ in rows}
    assert f"above {HIGHEST_SHARE}," in matched["high-memory-share"]
    assert f"above {MOST_POOLS} x the KV cache" in matched["pool-sequences"]


def test_the_page_of_plan_lint_has_every_reach_beyond_the_container() -> None:
    rows = (fill(f"  {reach.danger}: {' '.join(reach.paths)}", 120, subsequent_indent="      ") for reach in REACHES)
    assert "\n\n" + "\n".join(rows) + "\n\n" in explained("plan-lint")


def test_the_page_of_remove_ipc_has_the_command_of_its_hint() -> None:
    assert f"\n             {KEEP_SERVICES} USER\n" in explained("remove-ipc")
