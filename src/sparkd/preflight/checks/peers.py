"""The other nodes: their clocks, and the DNS servers that torch queries for their names."""

from __future__ import annotations

from msgspec import Struct

from sparkd.host import Host, datagrams
from sparkd.preflight.check import Check, Level, Verdict, ok, verdict, warn
from sparkd.status.model import Contact
from sparkd.status.report_file import read_living_report


class NameServer(Struct, frozen=True):
    address: str
    answers: bool | None
    """None where no query was sent."""


class ResolverFacts(Struct, frozen=True):
    servers: tuple[NameServer, ...]


class Resolver(Check[ResolverFacts], frozen=True):
    peers: tuple[str, ...]
    id = "resolver"
    levels = (Level.WARN,)
    reads = "/etc/resolv.conf, /run/systemd/resolve/resolv.conf; one query to each server, 0.3 s at most"
    source = "measured on vLLM 0.32: torch's rendezvous waits 10 s for the name of each of two nodes"
    page = """\
When ranks meet, torch looks up the names of their addresses. A DNS server that answers or refuses costs nothing. A
silent one costs 10 s for each node, at every start. That is common where the fabric works and the way to the office
network does not. The check sends a query for another node's name to every server that the container will have: those of
/etc/resolv.conf, or, where that names only systemd's stub (127.0.0.53), those of /run/systemd/resolve/resolv.conf.

  warn     none of them answers. Fix the network to them, or remove them: a node without a nameserver is fine, since
           sparkd itself looks no name up."""

    def probe(self, host: Host) -> ResolverFacts:
        if not self.peers:
            return ResolverFacts(())
        found = datagrams.read_servers(host.files)
        answers = datagrams.query_servers(host, found, self.peers[0]) if found else {}
        return ResolverFacts(tuple(NameServer(one, answers.get(one)) for one in found))

    def judge(self, facts: ResolverFacts) -> Verdict:
        if not self.peers:
            return ok("one node")
        names = ", ".join(one.address for one in facts.servers)
        if not names:
            return ok("no DNS server is named, and none is needed")
        if all(one.answers is False for one in facts.servers):
            reason = f"no DNS server answers ({names}): each start takes about {10 * (len(self.peers) + 1)} s longer"
            return warn(reason, "fix the network to them, or remove them from /etc/resolv.conf")
        good = ", ".join(one.address for one in facts.servers if one.answers)
        return ok(f"{good} answers" if good else f"not queried: {names}")


APART_SECONDS = 5.0
"""Clocks that chrony or timesyncd keep differ by milliseconds; an answer's date has whole seconds."""


class PeerClock(Struct, frozen=True):
    node: str
    address: str
    ahead_seconds: float


class PeerClockFacts(Struct, frozen=True):
    clocks: tuple[PeerClock, ...]


class PeerClocks(Check[PeerClockFacts], frozen=True):
    nodes: int
    id = "peer-clock"
    levels = (Level.WARN,)
    reads = "the running agent's /run/sparkd/report.json: the date of each other node's last answers"
    source = "DESIGN: sparkd's own signatures need no clocks; journals, TLS and tokens do"
    page = """\
Every answer of another node's agent carries its date. This node's agent compares it with its own clock and keeps the
difference in its report (peers[].clock_ahead_seconds), which this check reads.

  warn     a clock differs by more than 5 s. The lines of two journals can't be put in order then, and certificates and
           tokens may be refused. timedatectl on each node shows which clock is wrong. Without a way to the internet,
           let chrony on one node serve the others.

sparkd itself compares no clocks: its deadlines use each node's monotonic clock. A node that has not answered yet is not
judged; a node alone is ok."""

    def probe(self, host: Host) -> PeerClockFacts:
        report = read_living_report(host.files) if self.nodes > 1 else None
        if report is None:
            return PeerClockFacts(())
        clocks = (
            PeerClock(peer.report.node if peer.report else "", peer.address, peer.clock_ahead_seconds)
            for peer in report.peers
            if peer.contact is Contact.ANSWERS and peer.clock_ahead_seconds is not None
        )
        return PeerClockFacts(tuple(clocks))

    def judge(self, facts: PeerClockFacts) -> Verdict:
        if self.nodes == 1:
            return ok("one node")
        if not facts.clocks:
            return ok("no other node has been heard yet")
        problems = []
        for clock in facts.clocks:
            if abs(clock.ahead_seconds) > APART_SECONDS:
                name = f"{clock.node} ({clock.address})" if clock.node else clock.address
                side = "ahead of" if clock.ahead_seconds > 0 else "behind"
                reason = f"the clock of {name} is {abs(clock.ahead_seconds):.0f} s {side} this node's"
                problems.append(warn(reason, "look at both: timedatectl"))
        return verdict(problems, f"{len(facts.clocks)} of {self.nodes - 1} heard, within {APART_SECONDS:g} s")
