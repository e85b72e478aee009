"""Script paths: everything that the unit and the launch will execute, open or mount is there."""

from __future__ import annotations

from errno import ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host.files import Kind
from sparkd.host.unit_syntax import assignments
from sparkd.preflight import exec_paths
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.needed import Needed, NeededPath
from sparkd.preflight.problems import Problem, verdict

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.files import Files

NOTHING_THERE = (ENOENT, ENOTDIR, ENAMETOOLONG, ELOOP)
LAUNCH_SCRIPT = "/run/sparkd/launch.sh"


class WantedDropIn(Struct, frozen=True):
    """The drop-in that the configuration asks for. Empty text: none."""

    path: str
    text: str
    header: str
    """How a file begins that sparkd wrote."""


class PathFacts(Struct, frozen=True):
    needed: NeededPath
    kind: Kind | None
    """None where there is nothing."""
    executable: bool = False
    empty: bool = False


class ScriptFacts(Struct, frozen=True):
    unit: str
    unit_sources: tuple[str, ...]
    """Empty where the unit is not installed."""
    masked: bool
    paths: tuple[PathFacts, ...]
    unknown_words: tuple[str, ...]
    drop_in: str | None
    """Text of the drop-in as it is; None where there is none."""
    launch_script: Kind | None


class ScriptPaths(Check[ScriptFacts], frozen=True):
    """Nothing that will be needed is missing. A unit whose script is gone would fail and loop all day."""

    unit: str
    needed: tuple[NeededPath, ...] = ()
    drop_in: WantedDropIn | None = None
    id: ClassVar[str] = "script-paths"
    about: ClassVar[About] = About(
        levels=(Level.WARN, Level.BLOCK),
        reads="the effective unit with its drop-ins; every path of the plan",
        source="'What Broke on Reboot', Echo, 27 May 2026: a unit that executed a script that was gone",
        page="""\
A unit that names a script which is gone fails with status 127 and is started again, for ever, without one line from
the engine. A missing model shows only after a minute of imports. This check looks at every path before the launch:

  - every absolute path in the Exec* lines of the unit as systemd sees it, drop-ins included; programs must be
    executable files. A command with `-` before it may fail, so its missing paths only warn.
  - engine.script, the model's folder (which must hold something: an empty one is often a disk that is not mounted),
    the files of secrets, the sources of the container's mounts, and its devices.
  - the drop-in that the configuration asks for is the one installed.

  block  something is missing, or of the wrong kind.
  warn   the unit is not installed, or a word of it holds what only systemd knows (an environment variable, a rare
         specifier).""",
    )

    def probe(self, host: Host) -> ScriptFacts:
        unit = host.unit(self.unit)
        of_unit, unknown = exec_paths.of_unit(unit, host.files) if unit else ((), ())
        return ScriptFacts(
            unit=self.unit,
            unit_sources=unit.sources if unit else (),
            masked=bool(unit and unit.masked),
            paths=tuple(_look(host.files, one) for one in (*of_unit, *self.needed)),
            unknown_words=unknown,
            drop_in=_text(host.files, self.drop_in.path) if self.drop_in else None,
            launch_script=_kind(host.files, LAUNCH_SCRIPT),
        )

    def judge(self, facts: ScriptFacts) -> Verdict:
        problems = [problem for one in facts.paths if (problem := _problem(one)) is not None]
        problems += [
            Problem(Level.WARN, f"{word} can't be looked up: only systemd knows what it means")
            for word in facts.unknown_words
        ]
        if facts.launch_script not in (None, Kind.FILE):
            reason = f"{LAUNCH_SCRIPT} is a {facts.launch_script.value}, not a file"
            problems.append(Problem(Level.BLOCK, reason, f"remove it: rm -r {LAUNCH_SCRIPT}"))
        if not facts.unit_sources:
            problems.append(Problem(Level.WARN, f"{facts.unit} is not installed", "install the package"))
        elif not facts.masked:
            problems += self._drift(facts)
        return verdict(problems, f"{len(facts.paths)} paths, all there")

    def _drift(self, facts: ScriptFacts) -> list[Problem]:
        wanted = self.drop_in
        if wanted is None or _same(facts.drop_in, wanted.text):
            return []
        if facts.drop_in is not None and not facts.drop_in.startswith(wanted.header):
            reason = f"{wanted.path} was not written by sparkd"
            return [Problem(Level.BLOCK, reason, "move it to another name")] if wanted.text else []
        state = "is missing" if facts.drop_in is None else "is not what the configuration asks for"
        return [Problem(Level.BLOCK, f"{wanted.path} {state}", "sparkd units install")]


def _same(found: str | None, wanted: str) -> bool:
    """Whether two drop-ins say the same: their comments may be of another version."""
    if found is None or not wanted:
        return found is None and not wanted
    return assignments(found) == assignments(wanted)


def _problem(facts: PathFacts) -> Problem | None:
    wrong = _wrong(facts)
    if not wrong:
        return None
    level = Level.WARN if facts.needed.may_fail else Level.BLOCK
    return Problem(level, f"{facts.needed.path} {wrong} ({facts.needed.what})", facts.needed.hint)


def _wrong(facts: PathFacts) -> str:
    """What is wrong with a path; empty where it is as it must be."""
    if facts.kind is None:
        return "does not exist"
    match facts.needed.needed:
        case Needed.FILE | Needed.PROGRAM if facts.kind is not Kind.FILE:
            return f"is a {facts.kind.value}, not a file"
        case Needed.FOLDER if facts.kind is not Kind.FOLDER:
            return f"is a {facts.kind.value}, not a folder"
        case Needed.PROGRAM if not facts.executable:
            return "is not executable"
        case Needed.FILE | Needed.PROGRAM | Needed.FOLDER if facts.empty:
            return "is empty"
        case _:
            return ""


def _look(files: Files, needed: NeededPath) -> PathFacts:
    path = needed.path
    if _kind(files, path) is None and ":" in path:
        path = path.partition(":")[0]  # docker's -v SOURCE:TARGET
    try:
        facts = files.stat(path)
    except OSError as error:
        if error.errno not in NOTHING_THERE:
            raise
        return PathFacts(needed, None)
    match facts.kind:
        case Kind.FOLDER:
            empty = needed.needed is Needed.FOLDER and not files.names(path)
        case Kind.FILE:
            empty = facts.size_bytes == 0
        case _:
            empty = False
    return PathFacts(needed, facts.kind, facts.executable, empty)


def _kind(files: Files, path: str) -> Kind | None:
    try:
        return files.stat(path).kind
    except OSError as error:
        if error.errno not in NOTHING_THERE:
            raise
        return None


def _text(files: Files, path: str) -> str | None:
    try:
        return files.text(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
