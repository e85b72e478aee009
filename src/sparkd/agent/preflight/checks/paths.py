"""Script paths: everything that the unit and the launch will execute, open or mount is there."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, block, verdict, warn
from sparkd.agent.preflight.hooks import Hook, check_program
from sparkd.agent.preflight.needed_paths import Needed, NeededPath, PathFacts, read_path, stat_if_any
from sparkd.agent.preflight.unit_paths import paths_of_unit
from sparkd.base.config import units
from sparkd.base.config.units import DropIn, State
from sparkd.base.host import Host
from sparkd.base.host.files import Kind
from sparkd.base.host.units import OWN_UNITS
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


def paths_of_plan(plan: LaunchPlan) -> tuple[NeededPath, ...]:
    """The launch script's own source, the model, secrets, and everything that the container gets from outside."""
    model, device = f"the model of recipe {plan.recipe}", f"a device of recipe {plan.recipe}"
    # Where no device is found yet, RDMA is not insisted on: the check rdma judges that.
    no_verbs = plan.names_hcas and not plan.node.hcas
    devices = (path for path in plan.container.devices if not (no_verbs and path.startswith(VERBS)))
    write, load = "write the secret there", "load its driver, or take it out of the recipe"
    pull = f"sudo sparkd model pull {plan.recipe}; or set engine.models_dir"
    may_be_empty = (
        NeededPath(plan.user_script, "engine.script", Needed.FILE, "write it, or empty engine.script"),
        NeededPath(plan.model_path, model, Needed.FOLDER, pull),
    )
    return (
        *(needed for needed in may_be_empty if needed.path),
        *(NeededPath(secret.file, f"secret {secret.name}", Needed.FILE, write) for secret in plan.secrets),
        *_mount_sources(plan),
        *_flag_files(plan),
        *(NeededPath(path, device, Needed.ANYTHING, load) for path in devices),
    )


def _mount_sources(plan: LaunchPlan) -> Iterator[NeededPath]:
    make = "make it, or take it out of the recipe"
    for volume in plan.container.volumes:
        if not volume.source.startswith(OWN_FOLDERS) and volume.source != plan.model_path:
            yield NeededPath(volume.source, f"the source of the container's {volume.target}", Needed.ANYTHING, make)


def _flag_files(plan: LaunchPlan) -> Iterator[NeededPath]:
    """The files in mounts that flags name, and those of mods, which are in no mount. Others are the image's."""
    flags = first_values(plan.argv)
    for flag in FILE_FLAGS:
        inside = posixpath.normpath(flags.get(flag) or "")
        above = [volume for volume in plan.container.volumes if is_below(inside, volume.target)]
        if volume := max(above, key=lambda volume: len(volume.target), default=None):
            path = volume.source + inside.removeprefix(volume.target)
            hint = "write it there, or correct the flag"
            yield NeededPath(path, f"--{flag} {inside} in the container", Needed.ANYTHING, hint)
        elif flags.get(flag) and not plan.image_build and _is_of_a_mod(inside):
            hint = "mount it under container.volumes, and name it there; or use its full path in the image"
            yield NeededPath(inside, f"--{flag}", Needed.MOUNT, hint, may_fail=True)


def _is_of_a_mod(name: str) -> bool:
    """Whether a file is in no image as it is published. A template may also be given as text."""
    return not _TEMPLATE.search(name) and (not name.startswith("/") or is_below(name, MODS))


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
        launch_script = stat_if_any(files, SCRIPT_FILE)
        named = [paths_of_unit(unit, files) for unit in installed]
        needed = dict.fromkeys((*(path for paths in named for path in paths.needed), *self.needed))
        return ScriptFacts(
            unit=" and ".join(self.unit_names),
            unit_sources=tuple(source for unit in installed for source in unit.sources),
            masked=any(unit.masked for unit in installed),
            paths=tuple(read_path(files, path) for path in needed),
            unknown_words=tuple(word for paths in named for word in paths.unknown),
            drop_in=units.compare_file(files, self.drop_in) if self.drop_in else None,
            launch_script=launch_script.kind if launch_script else None,
            refused=tuple(hook for path in self.power_command[:1] if (hook := check_program(files, path)).problem),
        )

    def judge(self, facts: ScriptFacts) -> Verdict:
        return verdict(self._problems(facts), f"{len(facts.paths)} paths, all there")

    def _problems(self, facts: ScriptFacts) -> Iterator[Verdict]:
        for path in facts.paths:
            if path.fault:
                needed = path.needed
                level = Level.WARN if needed.may_fail else Level.BLOCK
                yield Verdict(level, f"{needed.path} {path.fault} ({needed.what})", needed.hint)
        for program in facts.refused:
            yield warn(f"supervise.power_command would not be run: {program.problem}", program.hint)
        for word in facts.unknown_words:
            yield warn(f"{word} can't be looked up: only systemd knows what it means")
        if facts.launch_script not in (None, Kind.FILE):
            reason = f"{SCRIPT_FILE} is a {facts.launch_script.value}, not a file"
            yield block(reason, f"remove it: sudo rm -r {SCRIPT_FILE}")
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
