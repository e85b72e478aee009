"""A bed: nodes side by side on this machine, on a network of their own, gone without a trace when it is left."""

import os
import re
import secrets
from pathlib import Path
from types import TracebackType
from typing import Self

from . import base_disk, nodebase, registry
from .cache import say
from .command import BedError
from .needs import ensure
from .node import Node
from .pool import AT, BASES, RUNS
from .processes import Identity, wait_for
from .space import Space, tail

MEMORY = 8 << 30
NAMES = re.compile("spark[1-8]")


class Bed:
    """`with Bed() as bed: bed.node("spark1").boot()`. The nodes die with the process that made the bed."""

    def __init__(self, name: str = "") -> None:
        self._name = name or secrets.token_hex(4)
        self._nodes: dict[str, Node] = {}
        self._entry: registry.Entry | None = None
        self._space: Space | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def nodes(self) -> list[Node]:
        return list(self._nodes.values())

    @property
    def space(self) -> Space:
        if self._space is None:
            raise BedError("the bed is not made yet: use `with Bed() as bed`")
        return self._space

    def __enter__(self) -> Self:
        ensure()
        registry.reap()
        self._entry = registry.Entry(self._name, Identity.of(os.getpid()))
        self._entry.create()
        try:
            self._space = Space.make(self._entry.folder / "keeper.log")
            self._entry = registry.Entry(self._name, self._entry.owner, self._space.keeper)
            self._entry.save()
            self._furnish()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _furnish(self) -> None:
        """The pool, the network, and the file system that shows each node its own memory."""
        self.space.module("pool", "mount")
        self._clear_disks()
        self.space.module("network")
        log = registry.HOME / self._name / "lxcfs.log"
        self.space.run("mkdir", "/run/bed/lxcfs")
        lxcfs = self.space.spawn(log, "lxcfs", "-f", "-p", "/run/bed/lxcfs.pid", "/run/bed/lxcfs")
        mounted = ("mountpoint", "--quiet", "/run/bed/lxcfs")
        wait_for(lambda: self.space.run(*mounted, check=False).returncode == 0 or not lxcfs.alive, 10, "lxcfs")
        if not lxcfs.alive:
            raise BedError(f"lxcfs ended: {tail(log)}")

    def _clear_disks(self) -> None:
        """Remove the disks that killed beds have left in the pool."""
        found = self.space.run("ls", RUNS).stdout.split()  # first: a bed has its note before it has a disk
        alive = {entry.name for entry in registry.entries()}
        for name in found:
            if name not in alive:
                self.space.run("rm", "-r", RUNS / name)
        self.space.run("mkdir", "-p", RUNS / self._name)

    def node(
        self, name: str = "spark1", suite: str = "trixie", memory: int = MEMORY, package: Path | None = None
    ) -> Node:
        """A new node with a fresh disk, `package` installed on it, switched off. `memory` is in bytes."""
        if not NAMES.fullmatch(name) or name in self._nodes:
            raise BedError(f"{name}: a node is named spark1 to spark8, and each name goes to one node")
        node = Node(self._name, name, self.space, nodebase.has_docker(suite))
        registry.note_node(self._name, name, node.docker)
        if package is None:
            disk = BASES / base_disk.ensure(self.space, self._name, suite)
        else:
            disk = base_disk.with_package(self.space, self._name, suite, package)
        self.space.module("pool", "clone", disk, node.image)
        self.space.module("disk", "personalise", node.image, name)
        node.group.make()
        try:
            node.memory(memory)
        except BedError as error:
            say(f"{name}: {error}")
        self._nodes[name] = node
        return node

    def remove(self, node: Node) -> None:
        """Cut its power and throw its disk away; the name is free again."""
        node.discard()
        registry.unnote_node(self._name, node.name)
        del self._nodes[node.name]

    def close(self) -> None:
        """Leave nothing; no error in here hides a process that still runs."""
        if self._entry is None:
            return
        try:
            if self._space is not None:
                for node in self.nodes:
                    self.remove(node)
                self._space.run("rm", "-rf", RUNS / self._name, check=False)
                self._space.run("umount", AT, check=False)  # now, not when the kernel comes to it
        finally:
            if self._space is not None:
                self._space.close()
            registry.forget(self._entry)
            self._entry = self._space = None
