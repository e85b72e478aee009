"""README's first steps, as commands: extracted from its text, and run on a fresh node as they stand there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

from .node import Node
from .sparkd_node import SERVING_SECONDS

README = Path(__file__).parents[2] / "README.md"
SECTION = re.compile(r"^## On a Spark\n(.*?)^## ", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
NOT_RUN = ("sudo docker pull ", "sudo sparkd model pull", "journalctl -f")
"""A node has no internet: its image and model are there. The last one follows without end."""
RECIPE = """\
schema: 1
name: my-model
extends: tiny-cpu
model: {path: tiny, served_name: my-model}
"""
"""The recipe that README assumes, for the only engine that runs here."""
SUDO = """#!/bin/sh
exec "$@"
"""
"""The nodes' only user is root."""
YES = 'APT::Get::Assume-Yes "true";\nAPT::Install-Recommends "false";\n'
"""The person who answers apt; there is no archive to install more from."""


@dataclass(frozen=True)
class FirstHour:
    node: Node
    commands: tuple[tuple[str, CompletedProcess[str]], ...]
    """In README's order, without its comments."""

    def done(self, words: str) -> CompletedProcess[str]:
        """Of the only command that begins with these words; `dry run N` is the Nth dry run."""
        runs = [one for command, one in self.commands if command.endswith("--dry-run")]
        if words.startswith("dry run "):
            return runs[int(words.removeprefix("dry run ")) - 1]
        (found,) = (one for command, one in self.commands if command.startswith(words))
        return found


def blocks() -> Iterator[str]:
    """Of the section, without their indent."""
    section = SECTION.search(README.read_text())
    assert section is not None
    for block in BLOCK.findall(section[1]):
        yield re.sub(r"^    ", "", block, flags=re.MULTILINE)


def split_commands(block: str) -> list[str]:
    lines = block.replace("\\\n", " ").splitlines()
    return [re.sub(r"\s+# .*", "", line).strip() for line in lines]


def walk(node: Node, package: Path) -> FirstHour:
    """Every command and every configuration of the section; at the end one more dry run, beside the serving agent."""
    node.put(package, f"/root/{package.name}")
    node.write("/usr/local/bin/sudo", SUDO)
    node.write("/etc/apt/apt.conf.d/90-answers", YES)
    node.sh("chmod 755 /usr/local/bin/sudo")
    done, dry_run = [], ""
    for block in blocks():
        if block.startswith("["):
            node.write("/etc/sparkd/sparkd.toml", block)
            node.write("/etc/sparkd/recipes/my-model.yaml", RECIPE)
            continue
        for command in split_commands(block):
            if command.startswith(NOT_RUN):
                continue
            dry_run = command if command.endswith("--dry-run") else dry_run
            ran = node.sh(f"cd /root && {command}", check=False, timeout=SERVING_SECONDS)
            done.append((command, ran))
    done.append((dry_run, node.sh(dry_run, check=False)))
    return FirstHour(node, tuple(done))
