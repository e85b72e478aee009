"""What a person sees of the nodes, from one report."""

import pytest
from msgspec.structs import replace
from tests.unit.node_reports import ALONE, HEAD_REPORT, NOW, PEER, WORKER, ago
from tests.unit.terminal import shown

from sparkd.base.lib.text import plain
from sparkd.base.status.figures import EngineReport
from sparkd.base.status.model import Contact, FindingReport, MemoryReport, NodeReport, PeerStatus, Phase
from sparkd.base.status.view import View
from sparkd.tools.node.status_text import CAUSE_LIMIT, render

VIEW = View(NOW, alive=True)


def rows(report: NodeReport, view: View = VIEW) -> list[str]:
    """Those below the headline."""
    return plain(render(report, view, whole=True)).partition("\n\n")[2].splitlines()


def on_terminal(report: NodeReport, columns: int) -> list[str]:
    return shown(render(report, VIEW), columns=columns, TERM="dumb").splitlines()


def test_a_node_alone_is_two_lines_and_what_is_not_as_it_should_be() -> None:
    first, figures, blank, *notes = rows(ALONE)
    assert first == "0  spark1  serving for 3 min  tiny on port 8000; last: the engine ended (exit 13)"
    assert figures.split() == ["█████████░", "11.5", "of", "120.0", "GiB", "free"]
    assert blank == ""
    assert notes == ["warn        page-cache: 4 GiB of page cache"]


def test_several_nodes_are_listed_in_rank_order() -> None:
    head, _, worker, _, blank, *findings = rows(HEAD_REPORT)
    assert head.startswith("0  spark1 (10.0.0.1)  serving for 3 min") and "(exit 13)" in head
    assert worker == "1  spark2 (10.0.0.2)  loading for 12 s  ████░░░░░░ loading weights 43%"
    assert blank == ""
    assert findings == [
        "warn        page-cache: 4 GiB of page cache",
        "block       spark2: memory: 9 GiB available, 96 GiB needed",
        "hint        on spark2: stop other work",
    ]


def test_the_list_of_a_worker_begins_with_the_head() -> None:
    own = replace(WORKER, peers=(PeerStatus("10.0.0.1", 0, Contact.ANSWERS, ago(9), replace(HEAD_REPORT, peers=())),))
    assert [line.split()[1] for line in rows(own)[:4:2]] == ["spark1", "spark2"]


@pytest.mark.parametrize(
    ("contact", "text"),
    [
        (Contact.UNHEARD, "not heard yet (loading)"),
        (Contact.REFUSED, "refused (loading)"),
        (Contact.SILENT, "silent for 12 s (loading)"),
        (Contact.UNSIGNED, "unsigned (loading)"),
    ],
)
def test_a_node_out_of_contact_shows_its_contact_and_its_last_known_phase(contact: Contact, text: str) -> None:
    failed = replace(WORKER, last_cause="a shard is missing")
    peer = rows(replace(HEAD_REPORT, peers=(replace(PEER, contact=contact, since=ago(12), report=failed),)))[2]
    assert text in peer
    assert "a shard is missing" in peer
    assert "GiB" not in peer and "%" not in peer


def test_a_node_never_heard_is_named_by_its_address() -> None:
    peer = rows(replace(HEAD_REPORT, peers=(PeerStatus("10.0.0.2", 1, Contact.UNHEARD, ago(90)),)))[2]
    assert peer.split() == ["1", "10.0.0.2", "not", "heard", "yet", "for", "1", "min"]


def test_the_report_of_an_agent_that_is_gone_is_not_shown_as_current() -> None:
    own, peer = rows(HEAD_REPORT, replace(VIEW, alive=False))[:2]
    assert "serving (its agent is gone)" in own
    assert "not known (loading)" in peer


def test_what_is_awaited_comes_before_what_ended_the_last_run() -> None:
    waits = replace(HEAD_REPORT, phase=Phase.AWAITING_PEERS, message="waiting for rank 1", last_cause="rank 1 was lost")
    assert rows(waits)[0].endswith("waiting for rank 1; last: rank 1 was lost")


def test_what_to_do_about_the_last_cause_is_shown_for_every_node() -> None:
    hinted = replace(PEER, report=replace(WORKER, last_hint="give it memlock -1"))
    assert "hint        spark2: last cause: give it memlock -1" in rows(replace(HEAD_REPORT, peers=(hinted,)))
    assert "hint        last cause: drink tea" in rows(replace(HEAD_REPORT, peers=(), last_hint="drink tea"))


def test_a_required_action_is_shown_without_a_hint() -> None:
    ended = replace(HEAD_REPORT, peers=(), last_action="reboot")
    assert "hint        last cause: reboot" in rows(ended)
    assert "hint        last cause: sudo reboot" in rows(replace(ended, last_hint="sudo reboot")), "it can be pasted"
    failed = replace(ended, phase=Phase.FAILED, message="down", action="inspect")
    assert "down; action: inspect" in "\n".join(rows(failed))


def test_the_action_none_is_not_shown() -> None:
    assert not [row for row in rows(replace(HEAD_REPORT, peers=(), last_action="none")) if row.startswith("hint")]


def test_a_cause_is_cut_on_a_terminal_and_whole_without_one() -> None:
    long = replace(HEAD_REPORT, message="", last_cause="x" * 1500)
    assert "x" * 1500 in rows(long)[0]
    lines = on_terminal(long, 80)
    assert max(map(len, lines)) <= 80
    assert "".join(lines).count("x") <= CAUSE_LIMIT


def test_a_command_is_not_cut_on_a_terminal() -> None:
    pull = f"sudo docker pull org/i@sha256:{'0' * 64} && sudo docker tag org/i@sha256:{'0' * 64} org/i:{'1' * 128}"
    blocked = replace(HEAD_REPORT, peers=(), phase=Phase.BLOCKED, message="", findings=(), hint=pull)
    assert f"next: {pull}" in on_terminal(blocked, 1000)


def test_a_screen_shows_no_rank_before_it_is_known() -> None:
    assert rows(replace(HEAD_REPORT, rank=-1, peers=()))[0].startswith("?  ")


def test_nothing_that_a_peer_wrote_moves_the_cursor() -> None:
    evil = "\x1b[2J\r\nspark9 \u202eabc"
    findings = (FindingReport(evil, evil, evil, evil),)
    engine = EngineReport(phase=evil, progress=float("nan"))
    memory = MemoryReport(total_bytes=10**400, available_bytes=-1)
    report = replace(
        WORKER, node=evil, last_cause=evil, since=evil, findings=findings, engine=engine, memory=memory, message=evil
    )
    shown = plain(render(replace(HEAD_REPORT, peers=(replace(PEER, address=evil, since=evil, report=report),)), VIEW))
    assert len(shown.splitlines()) == 11
    assert all(character == "\n" or character.isprintable() for character in shown)
    alone = plain(render(replace(report, peers=()), VIEW))
    assert "spark9" in alone
    assert all(character == "\n" or character.isprintable() for character in alone)
