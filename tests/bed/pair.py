"""Two nodes or more with sparkd on each, as one engine: installed, configured, started, looked at."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from .command import BedError
from .node import Node
from .processes import Identity, wait_for
from .sparkd_node import HEAD, SERVING_SECONDS, WORKER, SparkdNode, complete

KEY_FILE = "/etc/sparkd/cluster.key"
HEAD_KEY_FILE, HEAD_PUBLIC_FILE = "/etc/sparkd/head.key", "/etc/sparkd/head.pub"
STALL_SECONDS = 60
"""Enough for `degraded` to come first, and for a hang that is proven."""
LOAD_STALL_SECONDS = 20
PEER_TIMEOUT_SECONDS = 20
"""The default of supervise.peer_timeout_seconds, which stays."""
CONFIGURATION = """\
[cluster]
nodes = {nodes}
[engine]
recipe = "tiny-cpu-pair"
[engine.env]
OMP_NUM_THREADS = "1" # the nodes share two cores
NCCL_IB_HCA = "{{node.hcas}}" # they have no RDMA devices, and serve all the same
[supervise]
stall_seconds = {stall_seconds}
"""


def new_key() -> str:
    return secrets.token_hex(32)


@dataclass(frozen=True)
class Moment:
    """The processes at one moment, to be compared later. By rank."""

    ranks: tuple[tuple[Identity, ...], ...]
    agents: tuple[int, ...]
    cursors: tuple[str, ...]

    def gone(self, rank: int) -> bool:
        return not any(process.alive for process in self.ranks[rank])


@dataclass(frozen=True)
class Cluster:
    """`members` in rank order: the first is the head."""

    members: tuple[SparkdNode, ...]

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> Cluster:
        return cls(tuple(SparkdNode(node, WORKER if rank else HEAD) for rank, node in enumerate(nodes)))

    @property
    def head(self) -> SparkdNode:
        return self.members[0]

    @property
    def worker(self) -> SparkdNode:
        return self.members[1]

    def configuration(self) -> str:
        addresses = [member.node.fabric_address for member in self.members]
        return CONFIGURATION.format(nodes=str(addresses).replace("'", '"'), stall_seconds=STALL_SECONDS)

    def following(self, more: str = "") -> str:
        """Of a worker that takes all else from its head."""
        addresses = json.dumps([member.node.fabric_address for member in self.members])
        return f"[cluster]\nnodes = {addresses}\nfollow_head = true\n{more}"

    def configure(self, more: str = "") -> None:
        """The same file and the same key on all nodes; started at each boot."""
        for member in self.members:
            member.configure(self.configuration() + more)
            member.node.run("systemctl", "enable", member.unit)
        self.give_key(new_key(), *self.members)
        private = Ed25519PrivateKey.generate()
        self._give(HEAD_KEY_FILE, private.private_bytes_raw().hex(), self.head)
        self._give(HEAD_PUBLIC_FILE, private.public_key().public_bytes_raw().hex(), *self.members[1:])

    def give_key(self, text: str, *members: SparkdNode) -> None:
        self._give(KEY_FILE, text, *members)

    def _give(self, path: str, text: str, *members: SparkdNode) -> None:
        for member in members:
            member.node.sh(f"umask 077 && cat > {path}.new && mv {path}.new {path}", input=f"{text}\n")

    # Its life

    def start(self, *order: SparkdNode) -> None:
        """Their units, one after the other, none waited for."""
        for member in order or self.members:
            member.start_soon()

    def stop(self) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda member: member.stop(), self.members))

    def serves(self) -> bool:
        return self.head.phase() == "serving" and self.head.active() and complete(self.head.node)

    def await_serving(self, timeout: float = SERVING_SECONDS) -> float:
        """Without help: nothing is started here. How many seconds it took."""
        began = time.monotonic()
        try:
            wait_for(self.serves, timeout, "the endpoint to serve")
        except BedError as error:
            raise BedError(f"{error}\n{self.describe()}") from error
        return time.monotonic() - began

    def settle(self) -> None:
        """As before any fault: cables restored, nodes up, ledgers empty, serving."""
        for member in self.members:
            member.node.fabric.clear()
            member.node.power_on()
        for member in self.members:
            member.node.wait_booted()
        self.forget_failures()
        if not self.serves():
            self.stop()
            self.forget_failures()
            self.start()
            self.await_serving()

    def await_loading(self) -> None:
        """Until every node's rank loads, in the life of the agent that runs now."""

        def loads(member: SparkdNode) -> bool:
            report = member.report()
            loading = report is not None and report.phase.value == "loading" and report.pid == member.main_pid()
            return loading and bool(member.rank())

        for member in self.members:
            wait_for(partial(loads, member), SERVING_SECONDS, f"{member.node.name} to load")

    def forget_failures(self) -> None:
        for member in self.members:
            member.forget_failures()

    # What is seen of it

    def moment(self) -> Moment:
        return Moment(
            ranks=tuple(tuple(member.rank()) for member in self.members),
            agents=tuple(member.main_pid() for member in self.members),
            cursors=tuple(member.cursor() for member in self.members),
        )

    def describe(self) -> str:
        """The state of each node, for the report of a failure."""
        lines = []
        for member in self.members:
            with suppress(BedError):
                journal = member.node.journal(member.unit, "--lines=25")
                lines.append(f"{member.node.name} ({member.unit}): {member.status_text()}\n{journal}")
        return "\n".join(lines)
