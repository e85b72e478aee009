"""Script paths: everything that the unit and the launch will execute, open or mount is there."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from enum import Enum
from errno import ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, block, verdict, warn
from sparkd.agent.preflight.hooks import Hook, check_program
from sparkd.base.config import units
from sparkd.base.config.units import DropIn, State
from sparkd.base.host import Host
from sparkd.base.host.files import FileFacts, Files, Kind
from sparkd.base.host.units import OWN_UNITS, Unit
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.plan.script import SCRIPT_FILE
from sparkd.base.recipes.additions import VERBS
from sparkd.base.vllm.container_paths import FILE_FLAGS, is_below
from sparkd.base.vllm.flag import first_values

OWN_FOLDERS = ("/run/sparkd/", "/var/lib/sparkd/")
"""sparkd itself makes these at the launch."""
MODS = "/workspace/mods"
"""Where other tools copy mods at the start of a container."""
_TEMPLATE = re.compile(r"[{}\n]")


class Needed(Enum):
    ANYTHING = "there"
    FILE = "a file"
    FOLDER = "a folder with something in it"
    PROGRAM = "an executable file"
    MOUNT = "in a mount"


class NeededPath(Struct, frozen=True):
    path: str
    what: str
    """Where it is named: `engine.script`, `ExecStart of ...`."""
    needed: Needed
    hint: str = ""
    may_fail: bool = False
    """Its failure does not matter, as with `-` before a command."""


def paths_of_plan(plan: LaunchPlan) -> tuple[NeededPath, ...]:
    """The launch script's own source, the model, secrets, and everything that the container gets from outside."""
    model, device = f"the model of recipe {plan.recipe}", f"a device of recipe {plan.recipe}"
    # Where no device is found yet, RDMA is not insisted on: the check rdma judges that.
    no_verbs = plan.names_hcas and not plan.node.hcas
    devices = (path for path in plan.container.devices if not (no_verbs and path.startswith(VERBS)))
    write, load = "write the secret there", "load its driver, or take it out of the recipe"
    may_be_empty = (
        NeededPath(plan.user_script, "engine.script", Needed.FILE, "write it, or empty engine.script"),
        NeededPath(plan.model_path, model, Needed.FOLDER, f"sparkd model pull {plan.recipe}; or set engine.models_dir"),
    )
    return (
        *(needed for needed in may_be_empty if needed.path),
        *(NeededPath(secret.file, f"secret {secret.name}", Needed.FILE, write) for secret in plan.secrets),
        *mounted_paths(plan),
        *(NeededPath(path, device, Needed.ANYTHING, load) for path in devices),
    )


def mounted_paths(plan: LaunchPlan) -> tuple[NeededPath, ...]:
    """The sources of the container's mounts, and the files in them that flags name. Other files are the image's."""
    make = "make it, or take it out of the recipe"
    paths = [
        NeededPath(volume.source, f"the source of the container's {volume.target}", Needed.ANYTHING, make)
        for volume in plan.container.volumes
        if not volume.source.startswith(OWN_FOLDERS) and volume.source != plan.model_path
    ]
    flags = first_values(plan.argv)
    for flag in FILE_FLAGS:
        inside = posixpath.normpath(flags.get(flag) or "")
        above = [volume for volume in plan.container.volumes if is_below(inside, volume.target)]
        if volume := max(above, key=lambda volume: len(volume.target), default=None):
            path = volume.source + inside.removeprefix(volume.target)
            hint = "write it there, or correct the flag"
            paths.append(NeededPath(path, f"--{flag} {inside} in the container", Needed.ANYTHING, hint))
        elif flags.get(flag) and not plan.image_build and _is_of_a_mod(inside):
            hint = "mount it under container.volumes, and name it there; or use its full path in the image"
            paths.append(NeededPath(inside, f"--{flag}", Needed.MOUNT, hint, may_fail=True))
    return tuple(paths)


def _is_of_a_mod(name: str) -> bool:
    """Whether a file is in no image as it is published. A template may also be given as text."""
    return not _TEMPLATE.search(name) and (not name.startswith("/") or is_below(name, MODS))


PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Where systemd looks for a program that is no path: systemd.exec(5)."""

_SPECIFIER = re.compile(r"%(.)")
_VARIABLE = re.compile(r"\$\$|\$\{\w+\}|\$\w+")
_SHELL = re.compile(r"[\s;&|<>()*]")
"""Characters that mark a word as shell code, not a path."""
_FOLDERS = {
    "%": "%", "t": "/run", "S": "/var/lib", "C": "/var/cache", "L": "/var/log", "E": "/etc", "T": "/tmp",  # noqa: S108
    "V": "/var/tmp", "h": "/root", "u": "root", "U": "0", "g": "root", "G": "0", "i": "", "I": "",  # noqa: S108
}  # fmt: skip
"""Specifiers of the system manager: systemd.unit(5)."""


def paths_of_unit(unit: Unit, files: Files) -> tuple[tuple[NeededPath, ...], tuple[str, ...]]:
    """Paths that its commands name, and words with a part that only systemd knows."""
    paths: dict[str, NeededPath] = {}
    unknown: list[str] = []
    hint = "make it, or fix the unit: systemctl edit, then systemctl daemon-reload"
    for command in unit.commands:
        for number, word in enumerate(command.command.words):
            path = _resolve(word.partition("=")[2] if word.startswith("-") else word, unit.name)
            if number == 0 and not path.startswith("/"):
                path = _find_program(path, files)
            if not path.startswith("/"):
                continue
            if "\0" in path or (number > 0 and _SHELL.search(path) and not _exists(files, path)):
                unknown.append(f"{word} in {command.key}")
                continue
            needed = Needed.ANYTHING if number else Needed.PROGRAM
            where = f"{command.key} in {command.source}"
            paths.setdefault(path, NeededPath(path, where, needed, hint, command.command.ignores_failure))
    return tuple(paths.values()), tuple(unknown)


def _resolve(word: str, unit_name: str) -> str:
    """The word with its specifiers replaced; unknown parts stay, between NULs."""
    stem = unit_name.rpartition(".")[0]
    values = {**_FOLDERS, "n": unit_name, "N": stem, "p": stem, "P": stem, "j": stem.rpartition("-")[2]}
    word = _SPECIFIER.sub(lambda match: values.get(match[1], f"\0{match[0]}\0"), word)
    return _VARIABLE.sub(lambda match: "$" if match[0] == "$$" else f"\0{match[0]}\0", word)


def _exists(files: Files, path: str) -> bool:
    try:
        return files.exists(path)
    except OSError:  # too long for a path, say
        return False


def _find_program(program: str, files: Files) -> str:
    candidates = [f"{folder}/{program}" for folder in PATH]
    return next((path for path in candidates if files.exists(path)), candidates[3])


class PathFacts(Struct, frozen=True):
    needed: NeededPath
    kind: Kind | None
    executable: bool = False
    empty: bool = False


class ScriptFacts(Struct, frozen=True):
    unit: str
    unit_sources: tuple[str, ...]
    """Empty where the unit is not installed."""
    masked: bool
    paths: tuple[PathFacts, ...]
    unknown_words: tuple[str, ...]
    drop_in: State | None
    launch_script: Kind | None
    refused: tuple[Hook, ...]


class ScriptPaths(Check[ScriptFacts], frozen=True):
    """The plan's paths and its unit's; without a plan those of the units that are installed."""

    unit_names: tuple[str, ...]
    needed: tuple[NeededPath, ...] = ()
    drop_in: DropIn | None = None
    power_command: tuple[str, ...] = ()
    id = "script-paths"
    levels = (Level.WARN, Level.BLOCK)

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> ScriptPaths:
        if inputs.made_plan is None:
            return cls(OWN_UNITS)
        command = inputs.settings.supervise.power_command
        return cls((f"sparkd-{inputs.role}.service",), paths_of_plan(inputs.plan), inputs.drop_in, command)

    def probe(self, host: Host) -> ScriptFacts:
        files, installed = host.files, [unit for unit in map(host.unit, self.unit_names) if unit]
        launch_script = _stat(files, SCRIPT_FILE)
        named = [paths_of_unit(unit, files) for unit in installed]
        needed = dict.fromkeys((*(path for paths, _ in named for path in paths), *self.needed))
        return ScriptFacts(
            unit=" and ".join(self.unit_names),
            unit_sources=tuple(source for unit in installed for source in unit.sources),
            masked=any(unit.masked for unit in installed),
            paths=tuple(_read_path(files, path) for path in needed),
            unknown_words=tuple(word for _, unknown in named for word in unknown),
            drop_in=units.compare_file(files, self.drop_in) if self.drop_in else None,
            launch_script=launch_script.kind if launch_script else None,
            refused=tuple(hook for path in self.power_command[:1] if (hook := check_program(files, path)).problem),
        )

    def judge(self, facts: ScriptFacts) -> Verdict:
        return verdict(self._problems(facts), f"{len(facts.paths)} paths, all there")

    def _problems(self, facts: ScriptFacts) -> Iterator[Verdict]:
        for path in facts.paths:
            if wrong := _wrong(path):
                needed = path.needed
                level = Level.WARN if needed.may_fail else Level.BLOCK
                yield Verdict(level, f"{needed.path} {wrong} ({needed.what})", needed.hint)
        for program in facts.refused:
            yield warn(f"supervise.power_command would not be run: {program.problem}", program.hint)
        for word in facts.unknown_words:
            yield warn(f"{word} can't be looked up: only systemd knows what it means")
        if facts.launch_script not in (None, Kind.FILE):
            reason = f"{SCRIPT_FILE} is a {facts.launch_script.value}, not a file"
            yield block(reason, f"remove it: rm -r {SCRIPT_FILE}")
        if not facts.unit_sources:
            yield warn(f"{facts.unit} {'are' if self.unit_names[1:] else 'is'} not installed", "install the package")
        elif wrong_drop_in := self._judge_drop_in(facts):
            yield wrong_drop_in

    def _judge_drop_in(self, facts: ScriptFacts) -> Verdict | None:
        wanted, state = self.drop_in, facts.drop_in
        if not wanted or not state or facts.masked or (state is State.FOREIGN and not wanted.text):
            return None
        wrong = units.why_wrong(wanted, state)
        return block(*wrong) if wrong else None


def find_wrong(files: Files, needed: NeededPath) -> str:
    return _wrong(_read_path(files, needed))


def _wrong(facts: PathFacts) -> str:
    """What is wrong with a path; empty where nothing is."""
    needed = facts.needed.needed
    if facts.kind is None:
        return "is in no mount" if needed is Needed.MOUNT else "does not exist"
    if needed is Needed.ANYTHING:
        return ""
    kind = Kind.FOLDER if needed is Needed.FOLDER else Kind.FILE
    if facts.kind is not kind:
        return f"is a {facts.kind.value}, not a {kind.value}"
    if needed is Needed.PROGRAM and not facts.executable:
        return "is not executable"
    return "is empty" if facts.empty else ""


def _read_path(files: Files, needed: NeededPath) -> PathFacts:
    path = needed.path
    facts = None if needed.needed is Needed.MOUNT else _stat(files, path)
    if facts is None and ":" in path:
        path = path.partition(":")[0]  # docker's -v SOURCE:TARGET
        facts = _stat(files, path)
    if facts is None:
        return PathFacts(needed, None)
    if facts.kind is Kind.FOLDER:
        empty = needed.needed is Needed.FOLDER and not files.names(path)
    else:
        empty = facts.kind is Kind.FILE and facts.size_bytes == 0
    return PathFacts(needed, facts.kind, facts.executable, empty)


def _stat(files: Files, path: str) -> FileFacts | None:
    try:
        return files.stat(path)
    except OSError as error:
        if error.errno not in (ENOENT, ENOTDIR, ENAMETOOLONG, ELOOP):
            raise
        return None
