"""DNS: a server that never answers makes every start wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host import resolver
from sparkd.preflight.check import About, Check, Level, Verdict

if TYPE_CHECKING:
    from sparkd.host import Host


class NameServer(Struct, frozen=True):
    address: str
    answers: bool | None
    """None where it was not asked."""


class ResolverFacts(Struct, frozen=True):
    servers: tuple[NameServer, ...]


class Resolver(Check[ResolverFacts], frozen=True):
    """Nothing of the engine needs DNS, but torch asks for the name of each node and waits. It never blocks."""

    peers: tuple[str, ...]
    """Addresses of the other nodes."""
    id: ClassVar[str] = "resolver"
    about: ClassVar[About] = About(
        levels=(Level.WARN,),
        reads="/etc/resolv.conf, /run/systemd/resolve/resolv.conf; one question to each server, 0.3 s at most",
        source="measured on vLLM 0.32: torch's rendezvous waits 10 s for the name of each of two nodes",
        page="""\
When ranks meet, torch asks for the names of their addresses. A DNS server that answers, even "I don't know", or that
refuses, costs nothing. One that is silent costs 10 s for each node, at every start: 20 s for a pair. That is common
where the fabric works and the way to the office network does not.

Asks every server that the container will have (those of /etc/resolv.conf; where that names only systemd's stub,
127.0.0.53, docker puts the servers of /run/systemd/resolve/resolv.conf in its place) for the name of another node.

  warn     none of them answers. Mend the network to them, or take them out: a node without a nameserver is fine, and
           sparkd itself looks no name up.

A node alone meets nobody, and the check is ok.""",
    )

    def probe(self, host: Host) -> ResolverFacts:
        if not self.peers:
            return ResolverFacts(())
        found = resolver.servers(host.files)
        said = resolver.answers(host, found, self.peers[0]) if found else {}
        return ResolverFacts(tuple(NameServer(one, said.get(one)) for one in found))

    def judge(self, facts: ResolverFacts) -> Verdict:
        if not self.peers:
            return Verdict(Level.OK, "one node")
        names = ", ".join(one.address for one in facts.servers)
        if not names:
            return Verdict(Level.OK, "no DNS server is named, and none is needed")
        if all(one.answers is False for one in facts.servers):
            seconds = 10 * (len(self.peers) + 1)
            reason = f"no DNS server answers ({names}): each start takes about {seconds} s longer"
            return Verdict(Level.WARN, reason, "mend the way to them, or take them out of /etc/resolv.conf")
        good = ", ".join(one.address for one in facts.servers if one.answers)
        return Verdict(Level.OK, f"{good} answers" if good else f"not asked: {names}")
