"""Has the power of a node that hangs cut by `supervise.power_command`: docs/adr/0073.

Any doubt leaves the node to a person. A thread looks every ten seconds. It keeps what it has seen in /run for the agent
after this one: a silence that nobody watched from its beginning proves nothing.
"""

import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.actions.files import write
from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.operator_program import DEADLINE_SECONDS, ENVIRONMENT, first_line, run_program
from sparkd.agent.daemon.reboot import announce, judge_earlier
from sparkd.agent.preflight.hooks import check_program
from sparkd.base.host import network
from sparkd.base.lib.errors import Cause
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import format_duration, seconds_since
from sparkd.base.state.file import StateFile
from sparkd.base.state.rank_record import RANK_FILE
from sparkd.base.status.model import Contact, PeerStatus, Phase

LOOK_SECONDS = 10.0
PAUSE_SECONDS = 60.0
"""Time without a look after which watching begins again. A message may take 40 s, an agent's restart a few."""
APART_SECONDS = 3600.0
"""Shortest time between two power cuts of a node."""
ENDED = (Phase.STOPPING, Phase.STOPPED, Phase.FAILED)
"""Phases of a node where a person may be at work."""


class WatchedNode(Struct, frozen=True):
    """A node that has answered, and has neither ended its agent nor refused a connection since."""

    alive_at: float
    """When it was last not proven to be silent, as `LastLook.at`."""
    lan_address: str
    """The address that it reported, if its kernel answered there; else empty."""
    lan_at: float
    """When its kernel last answered there while it also reported."""
    announced: bool = False
    """The message about the power cut was sent."""


class LastLook(Struct, frozen=True):
    at: float
    """Uptime at the last look, which counts a suspended machine's time too."""
    nodes: Mapping[str, WatchedNode] = {}
    """By address of cluster.nodes."""


class LastRuns(Struct, frozen=True):
    at: Mapping[str, float] = {}
    """When the command last ran: UTC seconds, by address."""


LAST_LOOK = StateFile(LastLook, "power.json", folder=RANK_FILE.folder)
FILE = StateFile(LastRuns, "power.json")


def advance(
    previous: WatchedNode | None, peer: PeerStatus, answers: Mapping[str, bool], now: float, doubt: str
) -> WatchedNode | None:
    """What is known of a node after one more look; None where its silence would prove nothing. Pure.

    `answers`: whether kernels answer, by address. `doubt`: why this node may be the one that is cut off.
    """
    report = peer.report
    if report is not None and report.phase in ENDED:
        return None
    if peer.contact is Contact.ANSWERS and report is not None:
        return (
            _note_answer(previous, report.lan_address, answers, now) if previous or answers.get(peer.address) else None
        )
    if previous is None or peer.contact not in (Contact.SILENT, Contact.UNHEARD):
        return None
    if doubt or answers.get(peer.address, True) or answers.get(previous.lan_address, True):
        return replace(previous, alive_at=now, announced=False)
    return previous


def _note_answer(
    previous: WatchedNode | None, lan_address: str, answers: Mapping[str, bool], now: float
) -> WatchedNode:
    if answers.get(lan_address):
        return WatchedNode(now, lan_address, now)
    if previous is not None and previous.lan_address == lan_address and now - previous.lan_at <= PAUSE_SECONDS:
        # The kernel's table may lose an address before the node hangs.
        return replace(previous, alive_at=now, announced=False)
    return WatchedNode(now, "", now)


class PowerWatch(Struct):
    """Watches the other nodes, in a thread of its own."""

    agent: Agent
    _refused: dict[str, str] = {}
    """Reasons by address, as last logged."""

    def run(self) -> None:
        while True:
            try:
                self.look()
            except (OSError, ValueError) as error:
                self._log_refusal("", f"this node can't look: {error}", "df -h /run /var/lib/sparkd")
            time.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Look once at all nodes, and act on a proven silence. Raises OSError, ValueError."""
        now = self.agent.host.uptime_seconds()
        last_look = LAST_LOOK.read(self.agent.host.files) or LastLook(0.0)
        watched_nodes = last_look.nodes if 0 <= now - last_look.at <= PAUSE_SECONDS else {}
        peers = self.agent.monitor.statuses()
        answers, is_connected = self._find_answering(peers, watched_nodes.values())
        nodes = dict[str, WatchedNode]()
        for peer in peers:
            doubt = ""
            if (node := watched_nodes.get(peer.address)) and peer.contact is Contact.SILENT:
                doubt = self._find_doubt(peer, node, answers, connected=is_connected)
            node = advance(node, peer, answers, now, doubt)
            if doubt:
                if _contact_seconds(peer) >= PAUSE_SECONDS:
                    reason = f"whether it or this node is cut off is unknown: {doubt}"
                    self._log_refusal(peer.address, reason, "look at the cable, and at that node")
            elif node is not None and peer.contact is Contact.SILENT:
                node = self._act_on_silence(peer, node, peers, now)
            else:
                self._refused.pop(peer.address, None)
            if node is not None:
                nodes[peer.address] = node
        self.agent.actions.write_private(LAST_LOOK.path, LAST_LOOK.encode(LastLook(now, nodes)))

    def _find_answering(
        self, peers: tuple[PeerStatus, ...], before: Iterable[WatchedNode]
    ) -> tuple[Mapping[str, bool], bool]:
        """Whether each address's kernel answers; and whether another node or the gateway does on the second network."""
        gateways = network.default_routes(self.agent.host.files).values()
        lan_addresses = {peer.report.lan_address: peer.contact for peer in peers if peer.report}
        address_groups = (
            (peer.address for peer in peers),
            gateways,
            lan_addresses,
            (node.lan_address for node in before),
        )
        answers = network.find_answering(self.agent.host.files, chain(*address_groups))
        answering_peers = (address for address, contact in lan_addresses.items() if contact is Contact.ANSWERS)
        return answers, any(answers.get(address) for address in (*gateways, *answering_peers))

    def _find_doubt(self, peer: PeerStatus, node: WatchedNode, answers: Mapping[str, bool], *, connected: bool) -> str:
        interface = self.agent.plan.node.interface
        if peer.own_address_gone:
            return peer.said
        if not interface:
            return "which interface has this node's address is not known: set fabric.interface"
        if (link := network.read_link(self.agent.host.files, interface)) is None or not link.carrier:
            return f"{interface} has no carrier"
        if not node.lan_address or interface in network.interfaces_of(self.agent.host.files, node.lan_address):
            return "on no second network did it answer before"
        if unknown_addresses := ", ".join({peer.address, node.lan_address} - answers.keys()):
            return f"this kernel's table of neighbours has no {unknown_addresses}: ip neigh"
        if not connected:
            return "neither another node nor the gateway answers"
        return ""

    def _act_on_silence(
        self, peer: PeerStatus, node: WatchedNode, peers: tuple[PeerStatus, ...], now: float
    ) -> WatchedNode | None:
        """Send the message in one look, and run the program in the next, if the node is still silent.

        Returns what is known of the node then; None once the program has run.
        """
        agent, address, silent_seconds = self.agent, peer.address, now - node.alive_at
        limit_seconds = agent.settings.supervise.power_after_minutes * 60
        preceding = next(
            (other for other in peers if other.rank < agent.context.rank and other.contact is Contact.ANSWERS), None
        )
        if preceding is not None:  # that node may just have run the program
            if _contact_seconds(peer) >= limit_seconds:
                reason = f"{preceding.name} answers too, and comes first"
                self._log_refusal(address, reason, "nothing is to be done here")
            return replace(node, alive_at=now, announced=False)
        if silent_seconds < limit_seconds or agent.loop.endings.stop_requested:
            return node
        path = agent.settings.supervise.power_command[0]
        runs, objection, hint = self._find_objection(address, path)
        if objection:
            self._log_refusal(address, objection, hint or "turn that node off and on again")
            return node
        if not node.announced:
            duration = format_duration(silent_seconds)
            text = f"{address} has been silent for {duration}, and sparkd has its power cut by {path}"
            announce(agent, f"{text}: nothing is to be done", Cause.PEER_SILENT, aside=True)
            return replace(node, announced=True)
        runs = LastRuns({**runs.at, address: time.time()})  # written first, so that it never runs again and again
        write(Path(self.agent.host.files.real(FILE.path)), FILE.encode(runs), FILE.mode, durable=True)
        self._run_command(address, silent_seconds)
        return None  # left to a person until it reports again: somebody may work at its console

    def _find_objection(self, address: str, path: str) -> tuple[LastRuns, str, str]:
        """The last runs; and why the program may not run now, with a hint, both empty where it may."""
        program, faults = check_program(self.agent.host.files, path), list[str]()
        runs = FILE.load(self.agent.host.files, faults.append) or LastRuns()
        if (at := runs.at.get(address)) is not None:
            faults.append(judge_earlier(FILE.path, at, time.time(), "had that power cut", APART_SECONDS))
        return runs, "".join(faults) or program.problem, program.hint

    def _run_command(self, address: str, silent_seconds: float) -> None:
        agent, (path, *arguments) = self.agent, self.agent.settings.supervise.power_command
        agent.events.warning("power.command.started", node=address, command=path, silent_seconds=round(silent_seconds))
        env = {**ENVIRONMENT, "SILENT_NODE": address}
        code, output = None, b""
        try:
            code, output = run_program(
                (self.agent.host.files.real(path), *arguments), time.sleep, env, DEADLINE_SECONDS
            )
            end = f"exit code {code}" if code is not None else f"killed after {DEADLINE_SECONDS:g} s"
        except OSError as error:
            end = f"it can't be run: {error.strerror}"
        hint = "turn that node off and on again"
        if code == 0:
            hint = "nothing is to be done if it comes back; else look at its console: this is done once"
        agent.events.warning("power.command.ended", node=address, ended=end, output=first_line(output), hint=hint)

    def _log_refusal(self, address: str, reason: str, hint: str) -> None:
        reason_words = re.sub("[0-9]+", "", reason)  # figures change with each look
        if self._refused.get(address) != reason_words:
            self._refused[address] = reason_words
            self.agent.events.warning("power.command.refused", node=address, reason=sanitize(reason), hint=hint)


def _contact_seconds(peer: PeerStatus) -> float:
    """How long the contact with it has been what it is."""
    return seconds_since(peer.since, datetime.now(UTC)) or 0.0
