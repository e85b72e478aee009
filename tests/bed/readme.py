"""README's first steps, as commands: extracted from its text, and run on fresh nodes as they stand there."""

import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

from . import apt_repository
from .node import Node
from .sparkd_node import SERVING_SECONDS
from .terminal import Session

README = Path(__file__).parents[2] / "README.md"
INSTALL, ONE, SEVERAL = "Install", "Three commands to a token", "On several Sparks"
BLOCK = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
NOT_RUN = ("sudo docker pull ", "sudo sparkd model pull", "journalctl -f", "sparkd status --watch")
"""A node has no internet: its image and model are there. The last ones follow without end."""
FROM_FILE = "sudo apt install ./"
"""The way of `Install` that needs no repository."""
URL = r"http://[\w.:\[\]]+/v1"
CODE = r"10\.0\.0\.\d+(?:-[0-9A-Z]{5}){4}"
CONFIRM, ENTER_CODE = "[Y/n]", "join code:"
OFFERS = {"/etc/sparkd/api.key? [Y/n]": "n", "Discord [none]:": ""}
"""What the head offers to a person; README's requests are without a key."""
STEP_SECONDS = 120.0
RECIPE = """\
schema: 1
name: my-model
extends: tiny-cpu
model: {path: tiny, served_name: my-model}
"""
"""The recipe that README assumes, for the only engine that runs here."""
RECIPE_OF_SEVERAL = """\
schema: 1
name: deepseek-v4-flash-balanced
extends: tiny-cpu-pair
model: {path: tiny, served_name: deepseek-v4-flash}
env: {OMP_NUM_THREADS: "1"}
"""
"""The nodes share two cores."""
SUDO = """#!/bin/sh
exec "$@"
"""
"""The nodes' only user is root."""
YES = 'APT::Get::Assume-Yes "true";\nAPT::Install-Recommends "false";\n'
"""The person who answers apt; there is no archive to install more from."""
SSHD = "UsePAM no\n"
"""Logins make no session of logind's."""


class Step(NamedTuple):
    """One command of README. `where`: its comment."""

    command: str
    where: str


@dataclass(frozen=True)
class Walk:
    nodes: tuple[Node, ...]
    commands: tuple[tuple[str, CompletedProcess[str]], ...]
    """In README's order, without its comments."""
    seconds: tuple[tuple[str, float], ...]
    """Of each command, on all its nodes."""
    code: str = ""

    @property
    def node(self) -> Node:
        return self.nodes[0]

    def done(self, words: str) -> CompletedProcess[str]:
        """Of the only command that begins with these words."""
        (found,) = (one for command, one in self.commands if command.startswith(words))
        return found

    @property
    def table(self) -> str:
        """Each command's seconds."""
        return "\n".join(f"{seconds:6.1f} s  {command}" for command, seconds in self.seconds)

    @property
    def failed(self) -> list[tuple[str, str]]:
        return [(command, one.stdout + one.stderr) for command, one in self.commands if one.returncode]


def steps(title: str) -> Iterator[Step]:
    """The commands of a section; what a block shows of their output is left out."""
    text = README.read_text()
    start = text.index(f"## {title}\n")
    for block in BLOCK.findall(text[start : text.index("\n## ", start)]):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            command, _, where = line.strip().partition(" # ")
            if re.match(r"sudo |sparkd |curl |systemctl |journalctl ", command):
                yield Step(command.strip(), where.strip())


def prepare(node: Node, package: Path) -> None:
    node.put(package, f"/root/{package.name}")
    node.write("/usr/local/bin/sudo", SUDO)
    node.write("/etc/apt/apt.conf.d/90-answers", YES)
    node.sh("chmod 755 /usr/local/bin/sudo")


def walk(node: Node, package: Path, signing_key: str) -> Walk:
    """The commands of two sections, on a node with a recipe of its own; then the request once more, to the URL that
    `sparkd status` has printed, and a dry run beside the agent.

    The package comes from the signed repository of a release, which the node serves to itself.
    """
    prepare(node, package)
    apt_repository.put(node, "stable", [package], signing_key)
    apt_repository.publish(node, "stable")
    apt_repository.serve(node)
    node.write("/etc/sparkd/recipes/my-model.yaml", RECIPE)
    done, took = dict[str, CompletedProcess[str]](), dict[str, float]()

    def run(command: str) -> None:
        started = time.monotonic()
        done[command] = node.sh(f"cd /root && {command}", check=False, timeout=SERVING_SECONDS)
        took[command] = time.monotonic() - started

    for step in (*steps(INSTALL), *steps(ONE)):
        if not step.command.startswith((*NOT_RUN, FROM_FILE)):
            run(step.command)
    (printed,), (request,) = re.findall(URL, done["sparkd status"].stdout), filter(re.compile("curl ").match, done)
    run(re.sub(URL, printed, request))
    run("sparkd preflight --dry-run")
    return Walk((node,), tuple(done.items()), tuple(took.items()))


def acquaint(head: Node, others: Sequence[Node]) -> None:
    """The person's own ssh keys, and the hosts that they have logged in to."""
    head.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/root/.ssh/id_ed25519")
    for node in others:
        node.write("/root/.ssh/authorized_keys", head.read("/root/.ssh/id_ed25519.pub"))
        node.write("/etc/ssh/sshd_config.d/bed.conf", SSHD)
        node.run("systemctl", "restart", "ssh")
        head.sh(f"ssh-keyscan {node.fabric_address} >> /root/.ssh/known_hosts")


def walk_several(nodes: Sequence[Node], package: Path) -> Walk:
    """Every command of the section for several nodes, with the model on the first one alone."""
    head, *others = nodes
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda node: prepare(node, package), nodes))
    acquaint(head, others)
    head.write("/etc/sparkd/recipes/deepseek-v4-flash-balanced.yaml", RECIPE_OF_SEVERAL)
    for node in others:
        node.sh("rm -r /srv/models/tiny")
    (install,) = (step for step in steps(INSTALL) if step.command.startswith(FROM_FILE))
    began = time.monotonic()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda node: node.sh(f"cd /root && {install.command}", timeout=STEP_SECONDS), nodes))
    done: list[tuple[str, CompletedProcess[str]]] = []
    took = [(install.command, time.monotonic() - began)]
    # A pair is what the recipe begins with; for more, a person says how many.
    more, code = f" --nodes {len(nodes)}" if len(nodes) > 2 else "", ""
    with ExitStack() as sessions:
        for step in steps(SEVERAL):
            started = time.monotonic()
            if step.command.startswith(NOT_RUN):
                continue
            if step.command == "sudo sparkd init":
                inviting = sessions.enter_context(Session(head, step.command + more))
                code = inviting.await_text(CODE, {**OFFERS, CONFIRM: "y"}, STEP_SECONDS)
            elif step.command == "sudo sparkd init --join":
                answers = {ENTER_CODE: code, CONFIRM: "y"}
                for node in others:
                    joining = sessions.enter_context(Session(node, step.command))
                    done.append((step.command, joining.await_end(answers, STEP_SECONDS)))
                done.append(("sudo sparkd init", inviting.await_end({}, STEP_SECONDS)))
            else:
                for node in _those(step.where, nodes):
                    # All engines import vLLM on the same two cores.
                    timeout = SERVING_SECONDS * max(1, len(nodes) // 2)
                    done.append((step.command, node.sh(f"cd /root && {step.command}", check=False, timeout=timeout)))
            took.append((step.command, time.monotonic() - started))
    return Walk(tuple(nodes), tuple(done), tuple(took), code)


def _those(where: str, nodes: Sequence[Node]) -> Sequence[Node]:
    if where.startswith("on every other one"):
        return nodes[1:]
    return nodes if where.startswith("on every node") else nodes[:1]
