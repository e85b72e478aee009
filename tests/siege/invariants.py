"""What holds in a siege: all along, and in each calm. Rules give complaints; each bound says what it is made of."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.bed.processes import Identity
from tests.bed.sparkd_node import RANK, SparkdNode

from sparkd.base.lib.errors import find_action
from sparkd.base.state.launch_history import BACKOFF_SECONDS

from .faults import BY_NAME, PEER, ROWLESS, SECONDARY, UNSEEN
from .world import STRANGER, World

LOAD = 1.5
"""For each node: they share two cores with whatever else runs on this machine."""
HALF_SECONDS = 60 + 30
"""The lease of a rank without an agent, and engine.stop_grace_seconds; a peer's silence and a stall are less."""
COOLING_SECONDS = sum(BACKOFF_SECONDS)
GROWN = {
    "sockets": 8,
    "descriptors": 0,
    "threads": 6,
    "rss_kb": 24 << 10,
    "mounts": 4,
    "cgroups": 40,
    "state_kb": 24 << 10,
    "run_kb": 4 << 10,
}
"""Beyond the beginning: connections of other nodes and of clients; no other descriptor, of which a serving agent has
five, also after a reload; a pool's threads; what CPython keeps; mounts of a container; units that come and go;
history.db is kept below 8 MiB, beside its journal and a copy of the head's files."""
OWN_LINES = 400
"""Of an agent, for each fault and each minute: a start has some 40, and one fault ends both ranks."""
AGENT = """
import os, subprocess, sys, time
pid = int(sys.argv[1])
status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
size = lambda path: int(subprocess.run(["du", "-sk", path], capture_output=True, text=True).stdout.split()[0])
looks = []
for _ in range(3):  # a file that is read at this moment is open in one of them
    opened = []
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            opened.append(os.readlink(entry.path))
        except OSError:  # it has just been closed
            pass
    sockets = sum(target.startswith("socket:") for target in opened)
    looks.append((sockets, len(opened) - sockets - sum("faketime" in target for target in opened)))
    time.sleep(0.2)
print(*map(min, zip(*looks)), status["Threads"].strip(), status["VmRSS"].split()[0],
      len(open("/proc/self/mountinfo").readlines()), sum(1 for _ in os.walk("/sys/fs/cgroup")),
      size("/var/lib/sparkd"), size("/run/sparkd"))
"""
ANSWERS = "for path in / /report /metrics /livez /readyz /nothing; do curl -s -m 5 http://127.0.0.1:29511$path; done"
READABLE = """
import glob, os, subprocess, sys
keys = sys.stdin.read().split()
def shows(text):
    return any(key in text for key in keys)
for top in ("/etc", "/run", "/var/lib", "/var/log", "/tmp", "/dev/shm", "/srv", "/root"):
    for folder, _, names in os.walk(top):
        for path in (os.path.join(folder, name) for name in names):
            if os.path.isfile(path) and os.access(path, os.R_OK) and shows(open(path, errors="replace").read(64 << 20)):
                print(path)
for path in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
    try:
        print(path * shows(open(path, errors="replace").read()), end="")
    except OSError:
        pass
print("status" * shows(subprocess.run(["sparkd", "status", "--json"], capture_output=True, text=True).stdout))
"""
FOREIGN = """
cd /dev/shm && ls psm_aaaa000[123]
docker inspect --format '{{slice .Id 0 12}} {{.State.Running}}' foreign
md5sum /etc/docker/daemon.json /srv/models/foreign/* /var/lib/foreign/* | cut -c-8
"""
SEGMENTS = """
import glob
mapped = ""
for path in glob.glob("/proc/[0-9]*/maps"):
    try:
        mapped += open(path).read()
    except OSError:  # it has just ended
        pass
print(*(path for path in glob.glob("/dev/shm/psm_*") if "psm_aaaa000" not in path and path not in mapped))
"""
RESTART_SECONDS = 20.0
"""Until dockerd has started the foreign container again, after its own restart."""
STRANGERS = r"/run/stranger\.py"
"""One of them has the name of an engine's process."""
NOBODY = ("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups")


def judge_ends(ends: Mapping[str, object], names: Collection[str]) -> Iterator[str]:
    """Of launches by id. `names`: of the faults since the last calm."""
    may = {*PEER, *(cause for fault in names for cause in BY_NAME[fault].causes)}
    for launch, end in ends.items():
        if not isinstance(end, dict) or not end.get("cause"):
            if not set(ROWLESS) & set(names):
                yield f"history: a launch has ended without a cause: {launch} {end}"
        elif not (end.get("action") or find_action(str(end["cause"]))):
            yield f"history: {end['cause']} has no action"
        elif end["cause"] not in may:
            yield f"cause: {end['cause']} is none of {sorted(may)}: {end.get('reason')}"


def judge_causes(causes: Collection[str], names: Collection[str]) -> Iterator[str]:
    """Of the launches on all nodes that have ended since the last calm."""
    if causes and set(causes) <= set(SECONDARY) and not set(UNSEEN) & set(names):
        yield f"cause: {causes} after {names}: each node refers to another one, and none says what happened"


def judge_guards(unit: int, child: int) -> Iterator[str]:
    """The unit's guards of a serving rank, and the agent's own, which it has since the unit gave no answer."""
    if max(unit, child) != 1:
        yield f"left: {unit} guards of the unit, {child} of the agent"


def judge_growth(first: Mapping[str, int], now: Mapping[str, int]) -> Iterator[str]:
    for figure, most in GROWN.items():
        if now[figure] - first[figure] > most:
            yield f"growth: {figure} was {first[figure]} and is {now[figure]}"


@dataclass
class Rules:
    world: World
    half_since: float | None = None
    strangers: dict[str, list[Identity]] = field(default_factory=dict)
    foreign: dict[str, str] = field(default_factory=dict)
    first: dict[str, dict[str, int]] = field(default_factory=dict)
    cursors: dict[str, str] = field(default_factory=dict)
    known: dict[str, set[str]] = field(default_factory=dict)
    """The launches on each node that had ended in the last calm."""
    ended: dict[str, dict[str, str]] = field(default_factory=dict)
    """The launches on each node that have ended since, and the cause of each."""
    calm_at: float = field(default_factory=time.monotonic)

    @property
    def load(self) -> float:
        return LOAD * len(self.world.cluster.members)

    @property
    def back_seconds(self) -> float:
        """Until tokens come; seconds in `cooling` do not count."""
        return self.load * (HALF_SECONDS + self.world.start_seconds)

    @property
    def cooling_seconds(self) -> float:
        return self.load * COOLING_SECONDS

    def all_along(self) -> Iterator[str]:
        """Also while nodes are off."""
        members = self.world.cluster.members
        ranks = [bool(set(member.rank()) - set(member.node.found(STRANGERS))) for member in members]
        now = time.monotonic()
        self.half_since = (self.half_since or now) if any(ranks) and not all(ranks) else None
        if self.half_since is not None and now - self.half_since > self.load * HALF_SECONDS:
            having = [member.node.name for member, rank in zip(members, ranks, strict=True) if rank]
            yield f"half a group: for {now - self.half_since:.0f} s only {', '.join(having)} had a rank"
            self.half_since = None
        for member in members:
            if member.node.init and any(not one.alive for one in self.strangers.get(self._boot(member), ())):
                self.strangers.pop(self._boot(member))
                yield f"strangers: a foreign process on {member.node.name} has ended"

    def _boot(self, member: SparkdNode) -> str:
        return f"{member.node.name} {member.node.init}"

    def note(self) -> None:
        """Where the next burst begins: what must be there after it."""
        for member in self.world.cluster.members:
            node = member.node
            self.strangers = {key: value for key, value in self.strangers.items() if not key.startswith(node.name)}
            self.strangers[self._boot(member)] = node.found(STRANGERS)
            if node.name not in self.first:
                self.first[node.name], self.foreign[node.name] = self._measure(member), self._foreign(member)
            self.cursors[node.name] = member.cursor()
            self.known.setdefault(node.name, set()).update(self.ended.get(node.name, {}))
        self.calm_at = time.monotonic()

    def in_calm(self, names: list[str]) -> Iterator[str]:
        """`names`: of the faults since the last calm."""
        with ThreadPoolExecutor() as pool:
            for complaints in pool.map(lambda member: list(self._of_node(member, names)), self.world.cluster.members):
                yield from complaints
        yield from judge_causes([cause for ends in self.ended.values() for cause in ends.values()], names)

    def _of_node(self, member: SparkdNode, names: list[str]) -> Iterator[str]:
        name = member.node.name
        until = time.monotonic() + RESTART_SECONDS
        while (now := self._foreign(member)) != self.foreign[name]:
            if time.monotonic() > until:
                yield f"strangers: {name} had {self.foreign[name]!r}, has {now!r}"
                break
            time.sleep(1)
        yield from self._ends(member, names)
        yield from self._left(member)
        yield from self._growth(member)
        journal = member.journal_since(self.cursors[name])
        yield from self._lines(member, journal, names)
        yield from self._secrets(member, journal)

    def _foreign(self, member: SparkdNode) -> str:
        return " ".join(member.node.sh(FOREIGN, check=False).stdout.split())

    def _history(self, member: SparkdNode) -> list[dict[str, object]]:
        rows = json.loads(member.node.run("sparkd", "history", "--json", "--last", "500").stdout)["launches"]
        return sorted(rows, key=lambda row: str(row["at"]))

    def _ends(self, member: SparkdNode, names: list[str]) -> Iterator[str]:
        """Each launch but the one that serves has one cause, which a fault of this burst may have, and one action."""
        name, rows, report = member.node.name, self._history(member), member.report()
        serving, known = report.rank_id if report else "", self.known.get(name, set())
        ends = {str(row["id"]): row.get("end") for row in rows if row["id"] != serving and row["id"] not in known}
        self.ended[name] = {
            launch: str(end.get("cause") or "") for launch, end in ends.items() if isinstance(end, dict)
        }
        if serving and serving not in {row["id"] for row in rows} and not set(ROWLESS) & set(names):
            yield f"history: the rank that serves on {name} has no row"
        for complaint in judge_ends(ends, names):
            yield f"{complaint} on {name}"

    def _left(self, member: SparkdNode) -> Iterator[str]:
        """One container, and no engine's process outside of it but the strangers."""
        node, containers = member.node, member.containers()
        if len(containers) != 1:
            yield f"left: {node.name} has the containers {containers}"
        guards = (len(node.pids(rf"memory_guard\.killer import main.* {lease}$")) for lease in (60, 0))
        for complaint in judge_guards(*guards):
            yield f"{complaint} on {node.name}"
        if segments := node.run("python3", "-c", SEGMENTS).stdout.strip():
            yield f"left: {node.name} has segments of no process: {segments}"
        top = node.run("docker", "top", *containers, "-eo", "pid", check=False).stdout.split()
        strays = [pid for pid in node.pids(RANK) if str(pid) not in top]
        strangers = node.pids(STRANGERS)
        if wrong := [pid for pid in strays if pid not in strangers]:
            listed = node.run("ps", "-o", "pid,ppid,etimes,args", "-p", ",".join(map(str, wrong)), check=False).stdout
            yield f"left: {node.name} has processes of no container: {listed}"

    def _growth(self, member: SparkdNode) -> Iterator[str]:
        for complaint in judge_growth(self.first[member.node.name], self._measure(member)):
            yield f"{complaint} on {member.node.name}"

    def _measure(self, member: SparkdNode) -> dict[str, int]:
        words = member.node.run("python3", "-c", AGENT, str(member.main_pid())).stdout.split()
        return dict(zip(GROWN, map(int, words), strict=True))

    def _lines(self, member: SparkdNode, journal: str, names: list[str]) -> Iterator[str]:
        minutes = (time.monotonic() - self.calm_at) / 60
        lines = [line for line in journal.splitlines() if not line.startswith("engine|")]
        if len(lines) > OWN_LINES * (1 + len(names) + minutes):
            yield f"journal: {len(lines)} lines of {member.unit} for {names} in {minutes:.1f} minutes"
        if bad := [line for line in lines if re.search(r"Traceback|agent\.bug|cause=bug", line)]:
            yield f"bug: {member.unit}: {bad[0]}"

    def _secrets(self, member: SparkdNode, journal: str) -> Iterator[str]:
        node, keys = member.node, (self.world.key, self.world.cluster_key)
        shown = node.run(*NOBODY, "python3", "-c", READABLE, input=" ".join(keys), check=False).stdout.strip()
        answers = node.sh(ANSWERS, check=False).stdout + journal
        if shown or any(key in answers for key in keys):
            yield f"secret: shown on {node.name} by {shown or 'an answer or the journal'}"
