"""What else starts vLLM on this node by itself: units of systemd, and containers that docker restarts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host import enabled_units, unit_files
from sparkd.lib.text import sanitize
from sparkd.preflight import engines
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.problems import Problem, verdict

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.docker_facts import ContainerFacts
    from sparkd.host.files import Files
    from sparkd.host.unit_files import Unit

RESTARTED = ("always", "unless-stopped", "on-failure")
SCRIPT_LIMIT_BYTES = 64 << 10
COMMAND_LENGTH = 8192
"""Looked at of one command: the patterns take the square of it."""
SCRIPTS = (".sh", ".bash", ".yml", ".yaml")
DOCKER_STARTS = re.compile(
    r"(?:^|[\s/])(?:docker|podman|nerdctl|docker-compose)\s(?:.*\s)?(?:run|start|exec|up|restart)\s"
)
VLLM = re.compile(r"vllm", re.IGNORECASE)
LAUNCHES = re.compile(
    r"\bvllm\s+serve\b|\bvllm\.entrypoints\.|\bpython[\d.]*\s(?:\S+\s+)*?-m\s+vllm\b"
    r"|\blaunch-cluster\.sh\b|\bsparkrun\s+run\b"
)


class ForeignUnit(Struct, frozen=True):
    name: str
    wanted_by: str
    key: str
    """ExecStart, ExecStartPre and the like."""
    source: str
    """The file that says so."""


class ForeignContainer(Struct, frozen=True):
    name: str
    image: str
    restart_policy: str
    running: bool


class ForeignFacts(Struct, frozen=True):
    units: tuple[ForeignUnit, ...]
    containers: tuple[ForeignContainer, ...]
    unread: tuple[str, ...]
    """Units whose text can't be read or parsed."""
    looked_at: int
    docker_known: bool


class ForeignUnits(Check[ForeignFacts], frozen=True):
    """Nobody else starts vLLM at boot. What runs now is the concern of stray-workers, so this never blocks."""

    id: ClassVar[str] = "foreign-units"
    about: ClassVar[About] = About(
        levels=(Level.WARN,),
        reads="services that another unit wants, their drop-ins, the scripts that they name; docker's containers",
        source="DeepSeek V4 Flash on Dual DGX Spark, addendum What Broke on Reboot (units that start a container); "
        "zoedolan/Vybn pull request 2624, antirez/ds4 issue 193 (units written by hand)",
        page="""\
A node that has served vLLM before sparkd came often starts it still: a unit written by hand, enabled long ago, or a
container whose restart policy docker heeds at boot. Both engines then want one GPU, one memory and port 8000, and
whoever comes second fails, at the next boot, with nobody there.

A service counts where another unit wants it (its link stands in a .wants or .requires folder below
/etc/systemd/system, /run/systemd/system or /usr/lib/systemd/system) and one of its ExecStart commands runs `vllm
serve` or vLLM's server as a module, launch-cluster.sh, sparkrun, or docker with vLLM in the command. A script or
compose file that the command names is looked into, once. Units of sparkd's own do not count, and masked ones do not
start.

A container counts where sparkd did not make it, its restart policy is not `no`, and its image or command is vLLM's.

  warn     such a unit or container is there, and named. If sparkd is to serve on this node, let it not start:

             systemctl disable NAME        docker update --restart=no NAME

           Neither stops what runs now. sparkd disables nothing: it may be meant, on another port and a part of the GPU.

Units of a user's own systemd, cron and /etc/rc.local are not looked at.""",
    )

    def probe(self, host: Host) -> ForeignFacts:
        wanted = {name: by for name, by in enabled_units.wanted(host.files).items() if not name.startswith("sparkd-")}
        units, unread = [], []
        for name, by in wanted.items():
            try:
                unit = _read(host.files, name)
                found = _starts_vllm(host.files, unit) if unit else None
            except (OSError, ValueError):
                unread.append(sanitize(name, 80))
                continue
            if found is not None:
                units.append(ForeignUnit(sanitize(name, 80), sanitize(by, 80), *found))
        docker = host.docker()
        containers = tuple(_shown(one) for one in docker.containers if _restarts_vllm(one))
        return ForeignFacts(tuple(units), containers, tuple(unread), len(wanted), docker.known)

    def judge(self, facts: ForeignFacts) -> Verdict:
        problems = [_of_unit(one) for one in facts.units]
        problems += [_of_container(one) for one in facts.containers]
        problems += [
            Problem(Level.WARN, f"whether {name} starts vLLM can't be told: it can't be read", f"systemctl cat {name}")
            for name in facts.unread
        ]
        away = "" if facts.docker_known else "; docker's containers were not looked at"
        return verdict(problems, f"none of {facts.looked_at} enabled services starts vLLM{away}")


def _read(files: Files, name: str) -> Unit | None:
    """Instances of a template have its text, where they have none of their own."""
    own = unit_files.read(files, name)
    stem, at, rest = name.partition("@")
    if own is not None or not at:
        return own
    return unit_files.read(files, f"{stem}@.{rest.rpartition('.')[2]}")


def _starts_vllm(files: Files, unit: Unit) -> tuple[str, str] | None:
    """Key and file of the first command that does."""
    for one in unit.commands:
        if one.key.startswith("ExecStart") and (
            _launches(one.command.words) or any(_says_so(files, word) for word in one.command.words)
        ):
            return one.key, one.source
    return None


def _launches(words: Sequence[str]) -> bool:
    text = " ".join(words)[:COMMAND_LENGTH]
    if engines.is_serve(tuple(words)) or LAUNCHES.search(text):
        return True
    return bool(DOCKER_STARTS.search(f"{text} ") and VLLM.search(text))


def _says_so(files: Files, word: str) -> bool:
    """Whether a script or compose file starts vLLM. One that is not there, or is long, says nothing."""
    if not (word.startswith("/") and word.endswith(SCRIPTS)):
        return False
    try:
        text = files.head(word, SCRIPT_LIMIT_BYTES).decode("utf-8", "replace")
    except OSError:
        return False
    lines = [line for line in text.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#")]
    if word.endswith(SCRIPTS[2:]):
        return any(VLLM.search(line) for line in lines)
    return any(_launches([line]) for line in lines)


def _restarts_vllm(one: ContainerFacts) -> bool:
    if one.ours or one.restart_policy not in RESTARTED:
        return False
    return bool(VLLM.search(one.image)) or _launches(one.command)


def _shown(one: ContainerFacts) -> ForeignContainer:
    return ForeignContainer(sanitize(one.name, 80), sanitize(one.image), one.restart_policy, one.running)


def _of_unit(one: ForeignUnit) -> Problem:
    reason = f"{one.name} starts vLLM too, wanted by {one.wanted_by} ({one.key} in {one.source})"
    return Problem(Level.WARN, reason, f"if sparkd is to serve: systemctl disable {one.name}")


def _of_container(one: ForeignContainer) -> Problem:
    reason = f"docker starts container {one.name} ({one.image}) again by itself: {one.restart_policy}"
    return Problem(Level.WARN, reason, f"if sparkd is to serve: docker update --restart=no {one.name}")
