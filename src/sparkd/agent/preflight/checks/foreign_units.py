"""What else starts or ends vLLM on this node: units, containers that docker restarts, programs that kill for memory."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from shlex import quote
from typing import NamedTuple

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, combine_verdicts, warn
from sparkd.agent.preflight.engine_processes import is_serve
from sparkd.base.host import Host, units
from sparkd.base.host.cgroups import Group, read_group
from sparkd.base.host.docker import ContainerFacts
from sparkd.base.host.files import Files
from sparkd.base.host.processes import Process
from sparkd.base.host.units import Unit
from sparkd.base.lib.text import sanitize

COMMAND_LENGTH = 8192
"""Characters of one command that are searched: the patterns take time by the square of it."""
SCRIPTS = (".sh", ".bash", ".yml", ".yaml")
DOCKER_STARTS = re.compile(
    r"(?:^|[\s/])(?:docker|podman|nerdctl|docker-compose)\s(?:.*\s)?(?:run|start|exec|up|restart)\s"
)
VLLM = re.compile(r"vllm", re.IGNORECASE)
VICTIM = re.compile(r"vllm|python", re.IGNORECASE)
LAUNCHES = re.compile(
    r"\bvllm\s+serve\b|\bvllm\.entrypoints\.|\bpython[\d.]*\s(?:\S+\s+)*?-m\s+vllm\b"
    r"|\blaunch-cluster\.sh\b|\bsparkrun\s+run\b"
)


class ForeignUnit(Struct, frozen=True):
    name: str
    wanted_by: str
    key: str
    source: str
    shipped: bool = False
    """Whether its link is a package's own, which `systemctl disable` leaves in place."""


class ForeignContainer(Struct, frozen=True):
    name: str
    image: str
    restart_policy: str
    running: bool


class Killer(NamedTuple):
    """A unit that ends processes for want of memory."""

    unit: str
    victims: str
    """Which processes, in words."""


class ForeignFacts(Struct, frozen=True):
    units: tuple[ForeignUnit, ...]
    containers: tuple[ForeignContainer, ...]
    unread: tuple[str, ...]
    """Units whose text can't be read or parsed."""
    looked_at: int
    docker_known: bool
    killers: tuple[Killer, ...] = ()


class ForeignUnits(Check[ForeignFacts], frozen=True):
    """Only sparkd starts vLLM at boot. Running engines are the concern of stray-workers, so this never blocks."""

    id = "foreign-units"
    levels = (Level.WARN,)

    def probe(self, host: Host) -> ForeignFacts:
        services = units.enabled_services(host.files).items()
        enabled = {name: link for name, link in services if not name.startswith("sparkd-")}
        starters, unread = [], []
        for name, link in enabled.items():
            try:
                if start := _find_start(host.files, _read_with_template(host.files, name)):
                    starters.append(ForeignUnit(sanitize(name, 80), sanitize(link.by, 80), *start, link.shipped))
            except (OSError, ValueError):
                unread.append(sanitize(name, 80))
        docker = host.docker()
        containers = tuple(
            ForeignContainer(sanitize(facts.name, 80), sanitize(facts.image), facts.restart_policy, facts.running)
            for facts in docker.containers
            if _restarts_vllm(facts)
        )
        by_name = (Killer(name, "containers by their name") for name in enabled if "anti-oom" in name)
        killers = (*_find_killers(host), *by_name)
        return ForeignFacts(tuple(starters), containers, tuple(unread), len(enabled), docker.known, killers)

    def judge(self, facts: ForeignFacts) -> Verdict:
        away = "" if facts.docker_known else "; docker's containers were not checked"
        return combine_verdicts(_find_problems(facts), f"none of {facts.looked_at} enabled services starts vLLM{away}")


def _find_killers(host: Host) -> Iterator[Killer]:
    """Find them among the running processes, since their arguments may come from anywhere.

    A program of this name that is not in its unit is a user's, who can't end the engine.
    """
    for process in host.processes():
        if process.comm not in ("earlyoom", "systemd-oomd"):
            continue
        unit_name, victims = f"{process.comm}.service", ""
        with suppress(OSError):
            if read_group(host.files, process.pid) == Group(unit=unit_name):
                victims = _describe_victims(host, process)
        if victims:
            yield Killer(unit_name, victims)


def _describe_victims(host: Host, killer: Process) -> str:
    """Whom it ends, in words; empty for a systemd-oomd that ends nobody. Raises OSError."""
    if killer.comm == "earlyoom":
        preferred = re.search(r" --prefer[ =](.*?)(?: -|$)", " ".join(host.argv(killer)))
        prefers_engine = preferred is not None and VICTIM.search(preferred[1]) is not None
        return "the engine before others (--prefer)" if prefers_engine else "the largest process"
    return "containers (ManagedOOM of the slice that has docker's)" if "kill" in _read_oomd_actions(host.files) else ""


def _read_oomd_actions(files: Files) -> set[str]:
    """What systemd-oomd does in the slices that have docker's containers, by their drop-ins; by default nothing."""
    values: dict[tuple[str, str], str] = {}
    for name in ("-.slice", "system.slice"):
        for source in units.find_drop_ins(files, units.drop_in_folders(name)):
            for section, key, value in units.parse_assignments(files.text(source)):
                if section == "Slice" and key in ("ManagedOOMSwap", "ManagedOOMMemoryPressure"):
                    values[name, key] = value
    return set(values.values())


def _read_with_template(files: Files, name: str) -> Unit | None:
    """Read a unit. An instance (a@b) without a file of its own has its template's (a@)."""
    unit = units.read_unit(files, name)
    stem, at, instance = name.partition("@")
    return unit if unit or not at else units.read_unit(files, f"{stem}@.{instance.rpartition('.')[2]}")


def _find_start(files: Files, unit: Unit | None) -> tuple[str, str] | None:
    """Key and file of the unit's first command that starts vLLM; None where none does."""
    for command in unit.commands if unit else ():
        if not command.key.startswith("ExecStart"):
            continue
        words = command.command.words
        if _launches(words) or any(_script_launches(files, word) for word in words):
            return command.key, command.source
    return None


def _launches(words: Sequence[str]) -> bool:
    text = " ".join(words)[:COMMAND_LENGTH]
    if is_serve(tuple(words)) or LAUNCHES.search(text):
        return True
    return bool(DOCKER_STARTS.search(f"{text} ") and VLLM.search(text))


def _script_launches(files: Files, word: str) -> bool:
    """Whether a script or compose file starts vLLM, by its beginning. A missing one does not."""
    if not (word.startswith("/") and word.endswith(SCRIPTS)):
        return False
    try:
        text = files.head(word, 64 << 10).decode("utf-8", "replace")
    except OSError:
        return False
    lines = [line for line in text.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#")]
    if word.endswith(SCRIPTS[2:]):
        return any(VLLM.search(line) for line in lines)
    return any(_launches([line]) for line in lines)


def _restarts_vllm(container: ContainerFacts) -> bool:
    restarts = not container.ours and container.restart_policy in ("always", "unless-stopped", "on-failure")
    return restarts and (VLLM.search(container.image) is not None or _launches(container.command))


def _find_problems(facts: ForeignFacts) -> Iterator[Verdict]:
    for unit in facts.units:
        reason = f"{unit.name} starts vLLM too, wanted by {unit.wanted_by} ({unit.key} in {unit.source})"
        verb = "mask" if unit.shipped else "disable"
        yield warn(reason, f"if sparkd is to serve: sudo systemctl {verb} {quote(unit.name)}")
    for container in facts.containers:
        description = f"container {container.name} ({container.image})"
        reason = f"docker starts {description} again by itself: {container.restart_policy}"
        yield warn(reason, f"if sparkd is to serve: sudo docker update --restart=no {quote(container.name)}")
    for killer in facts.killers:
        reason = f"{killer.unit} ends {killer.victims} for want of memory, beside sparkd's guard"
        socket = " systemd-oomd.socket" if killer.unit == "systemd-oomd.service" else ""  # it would start it at logins
        command = f"sudo systemctl disable --now {quote(killer.unit)}{socket}"
        yield warn(reason, f"{command}; the guard is for the engine alone")
    for name in facts.unread:
        yield warn(f"whether {name} starts vLLM is unknown: it can't be read", f"systemctl cat {quote(name)}")
