"""Script paths: whether everything is there that the unit and the launch will execute, open or mount."""

import posixpath
import re
from collections.abc import Iterator
from shlex import quote

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, block, combine_verdicts, warn
from sparkd.agent.preflight.hooks import Hook, check_program
from sparkd.agent.preflight.needed_paths import NeededPath, PathFacts, Requirement, read_path, stat_if_any
from sparkd.agent.preflight.unit_paths import paths_of_unit
from sparkd.base.config import units
from sparkd.base.config.units import DropIn, DropInState
from sparkd.base.host import Host
from sparkd.base.host.files import Kind
from sparkd.base.host.units import OWN_UNITS
from sparkd.base.lib import REINSTALL
from sparkd.base.lib.text import counted
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.plan.model import LaunchPlan, Node
from sparkd.base.plan.script import SCRIPT_FILE
from sparkd.base.recipes.additions import VERBS
from sparkd.base.vllm.command import first_values
from sparkd.base.vllm.container_paths import FILE_FLAGS, SYSTEM_TARGETS, is_below

OWN_FOLDERS = ("/run/sparkd/", "/var/lib/sparkd/")
"""Folders whose content sparkd itself makes at the launch."""
_MACHINES = (*SYSTEM_TARGETS, "/var/run", "/boot", "/bin", "/lib", "/lib64", "/usr/bin", "/usr/lib", "/usr/src")
"""Folders whose content is each machine's: its programs make it there, or its packages bring it."""
MODS = "/workspace/mods"
"""Folder in a container to which other tools copy mods at its start."""
_TEMPLATE = re.compile(r"[{}\n]")


def paths_of_plan(plan: LaunchPlan) -> tuple[NeededPath, ...]:
    """Paths that the plan needs: engine.script, the model, secrets, and all that the container gets from outside."""
    model, device = f"the model of recipe {plan.recipe}", f"a device of recipe {plan.recipe}"
    # Where the plan is to name RDMA devices and none was found yet, /dev/infiniband is not judged here, but by rdma.
    skips_verbs = plan.names_hcas and not plan.node.hcas
    devices = (path for path in plan.container.devices if not (skips_verbs and path.startswith(VERBS)))
    secret_hint, device_hint = "write the secret there", "load its driver, or take it out of the recipe"
    model_hint = f"{plan.model_pull}; or set engine.models_dir"
    optional = (
        NeededPath(plan.user_script, "engine.script", Requirement.FILE, "write it, or empty engine.script"),
        NeededPath(plan.model_path, model, Requirement.FOLDER, model_hint),
    )
    return (
        *(needed for needed in optional if needed.path),
        *(NeededPath(secret.file, f"secret {secret.name}", Requirement.FILE, secret_hint) for secret in plan.secrets),
        *_list_mount_sources(plan),
        *_list_flag_files(plan),
        *(NeededPath(path, device, Requirement.ANYTHING, device_hint) for path in devices),
    )


def _list_mount_sources(plan: LaunchPlan) -> Iterator[NeededPath]:
    for volume in plan.container.volumes:
        if not volume.source.startswith(OWN_FOLDERS) and volume.source != plan.model_path:
            what = f"the source of the container's {volume.target}"
            is_heads = volume.read_only and not plan.node.is_head and not is_below(plan.model_path, volume.source)
            is_heads &= not any(is_below(volume.source, folder) for folder in _MACHINES)
            remedy = f"{_copy_command(plan.node, volume.source)};" if is_heads else "make it,"
            yield NeededPath(volume.source, what, Requirement.ANYTHING, f"{remedy} or take it out of the recipe")


def _copy_command(node: Node, path: str) -> str:
    """The command that copies a path from the head, by the user's own login there."""
    folder, name = map(quote, posixpath.split(path))
    head = f"[{node.head_address}]" if ":" in node.head_address else node.head_address
    return f"scp -r {quote(f'{head}:{path}')} . && sudo mkdir -p {folder} && sudo cp -r ./{name} {folder}"


def _list_flag_files(plan: LaunchPlan) -> Iterator[NeededPath]:
    """Files that flags name: those in mounts, and those of mods, which are in no mount. Others are the image's."""
    flags = first_values(plan.argv)
    for flag in FILE_FLAGS:
        path_inside = posixpath.normpath(flags.get(flag) or "")
        volumes = [volume for volume in plan.container.volumes if is_below(path_inside, volume.target)]
        if volume := max(volumes, key=lambda volume: len(volume.target), default=None):
            path = volume.source + path_inside.removeprefix(volume.target)
            hint = "write it there, or correct the flag"
            yield NeededPath(path, f"--{flag} {path_inside} in the container", Requirement.ANYTHING, hint)
        elif flags.get(flag) and not plan.image_build and _is_mod_file(path_inside):
            hint = "mount it under container.volumes, and name it there; or use its full path in the image"
            yield NeededPath(path_inside, f"--{flag}", Requirement.MOUNT, hint, may_fail=True)


def _is_mod_file(name: str) -> bool:
    """Whether the name is of a mod's file, which no published image has. A template may be given as text, too."""
    return not _TEMPLATE.search(name) and (not name.startswith("/") or is_below(name, MODS))


class ScriptFacts(Struct, frozen=True):
    unit: str
    unit_sources: tuple[str, ...]
    """Files of the units; empty where none is installed."""
    masked: bool
    paths: tuple[PathFacts, ...]
    unknown_words: tuple[str, ...]
    drop_in: DropInState | None
    launch_script: Kind | None
    """What there is in the launch script's place; None for nothing."""
    refused: tuple[Hook, ...]
    """supervise.power_command, where it is unsafe to run."""


class ScriptPaths(Check[ScriptFacts], frozen=True):
    """The plan's paths and its unit's; without a plan those of the units that are installed."""

    unit_names: tuple[str, ...]
    needed: tuple[NeededPath, ...] = ()
    drop_in: DropIn | None = None
    power_command: tuple[str, ...] = ()
    id = "script-paths"
    levels = (Level.WARN, Level.BLOCK)

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> "ScriptPaths":
        if inputs.plan_if_any is None:
            return cls(OWN_UNITS)
        command = inputs.settings.supervise.power_command
        return cls((f"sparkd-{inputs.role}.service",), paths_of_plan(inputs.plan), inputs.drop_in, command)

    def probe(self, host: Host) -> ScriptFacts:
        files, installed = host.files, [unit for unit in map(host.unit, self.unit_names) if unit]
        launch_script = stat_if_any(files, SCRIPT_FILE)
        unit_paths = [paths_of_unit(unit, files) for unit in installed]
        needed = dict.fromkeys((*(path for paths in unit_paths for path in paths.needed), *self.needed))
        return ScriptFacts(
            unit=" and ".join(self.unit_names),
            unit_sources=tuple(source for unit in installed for source in unit.sources),
            masked=any(unit.masked for unit in installed),
            paths=tuple(read_path(files, path) for path in needed),
            unknown_words=tuple(word for paths in unit_paths for word in paths.unknown),
            drop_in=units.compare_file(files, self.drop_in) if self.drop_in else None,
            launch_script=launch_script.kind if launch_script else None,
            refused=tuple(hook for path in self.power_command[:1] if (hook := check_program(files, path)).problem),
        )

    def judge(self, facts: ScriptFacts) -> Verdict:
        return combine_verdicts(self._find_problems(facts), f"{counted(len(facts.paths), 'path')}, all there")

    def _find_problems(self, facts: ScriptFacts) -> Iterator[Verdict]:
        for path_facts in facts.paths:
            if path_facts.fault:
                needed, mount = path_facts.needed, path_facts.unmounted
                level = Level.WARN if needed.may_fail else Level.BLOCK
                what = f"{needed.what}; nothing is mounted at {mount}" if mount else needed.what
                hint = f"sudo mount {quote(mount)}; if that fails: sudo dmesg" if mount else needed.hint
                yield Verdict(level, f"{needed.path} {path_facts.fault} ({what})", hint)
        for program in facts.refused:
            yield warn(f"supervise.power_command would not be run: {program.problem}", program.hint)
        for word in facts.unknown_words:
            yield warn(f"{word} can't be looked up: only systemd knows what it means")
        if facts.launch_script not in (None, Kind.FILE):
            reason = f"{SCRIPT_FILE} is a {facts.launch_script.value}, not a file"
            yield block(reason, f"remove it: sudo rm -r {SCRIPT_FILE}")
        if not facts.unit_sources:
            yield warn(f"{facts.unit} {'are' if self.unit_names[1:] else 'is'} not installed", REINSTALL)
        elif wrong_drop_in := self._judge_drop_in(facts):
            yield wrong_drop_in

    def _judge_drop_in(self, facts: ScriptFacts) -> Verdict | None:
        wanted, state = self.drop_in, facts.drop_in
        if not wanted or not state or facts.masked or (state is DropInState.FOREIGN and not wanted.text):
            return None
        reason_and_hint = units.why_wrong(wanted, state)
        return block(*reason_and_hint) if reason_and_hint else None
