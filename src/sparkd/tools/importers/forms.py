"""Reads command lines, scripts, compose files, units and containers, and makes one recipe of what they start."""

import errno
import os
import pwd
import re
import shlex
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from sparkd.base.host import Host
from sparkd.base.host.docker import query
from sparkd.base.host.files import Files, Kind
from sparkd.base.lib.dockerd.reader import DockerError
from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.text import printable, sanitize
from sparkd.base.lib.text_file import LIMIT_BYTES
from sparkd.base.recipes.yaml import Document
from sparkd.tools.importers.command import VLLM_SERVE, Serve
from sparkd.tools.importers.compose import parse_env_file, read_compose
from sparkd.tools.importers.container import read_container
from sparkd.tools.importers.docker_line import is_unit, read_script, read_unit
from sparkd.tools.importers.launch import Engine, explain_missing, find_engine, find_script, merge
from sparkd.tools.importers.options import Launch, LaunchError, redact
from sparkd.tools.importers.shell import OF_IMAGE
from sparkd.tools.importers.source import ForeignRecipe, Overrides, Source
from sparkd.tools.importers.variables import CommandError, Variables, shown, unknown

CONTAINER = "container"
SUFFIXES = (".yaml", ".yml")
_MAPPING = re.compile(r"(?:[ \t\r]*(?:[#%].*|---.*)?\n)*[\"']?[\w.-]+[\"']?[ \t]*:\s")
"""The beginning of a YAML file. A script that writes such a file begins in another way."""
_COMPOSE = re.compile(r"^services[ \t]*:", re.MULTILINE)
_BEGIN = r"\s*+(?:#.*(?:\n\s*+|\Z))*+"
"""Comments and empty lines before the first of a file."""
_NEVER_READ = (
    ("an empty file", rf"{_BEGIN}\Z", "name the one that starts vLLM"),
    ("a Dockerfile", r"\s*+(?:(?:#|ARG ).*\n\s*+)*+FROM[ \t]", "import what starts its image"),
    ("a Python script", rf'#!.*python[\d.]*(?:\s|\Z)|(?!#!){_BEGIN}(?:import |from .* import |""")',
     "write what it starts as a `vllm serve` line"),
    ("a quadlet of podman", r"\s*+(?:[#;].*\n\s*+)*+(?=\[[A-Za-z-]+\]\s*\n)(?:.*\n)*?\[Container\]",
     "import the unit that podman makes of it: systemctl cat NAME"),
    ("a Kubernetes manifest", rf"{_BEGIN}(?:---\s+)?(?:kind:.*\n)?apiVersion:",
     "write image and command as a `docker run` line"),
)  # fmt: skip
"""Kinds that are never read, whatever commands they have: name, how a file of it begins, and what to do instead."""
_FENCED = r"(?!#!)(?:(?!.*<<).*\n)*?```"
"""Text with a fenced block of Markdown, unless it lies in a script's here-document."""
_UNREADABLE = (
    *_NEVER_READ,
    ("a shell script without vLLM", r"#!.*sh\b", "import the script or compose file that it runs, by its path"),
    ("Markdown", rf"(?!{_MAPPING.pattern})(?:#+ |{_FENCED})", "save the command in it as a file of its own"),
    ("plain text", rf"(?!{_MAPPING.pattern}|[-{{\[])", "write the command that starts vLLM"),
)
READ = "what is read: recipes of eugr, sparkrun and NVIDIA, command lines, scripts, compose files, units, containers"
_LAUNCH_READERS = {"systemd unit": read_unit, "command line": read_script}
_COMMAND = re.compile(r"\b(?:docker|podman)\b|\bvllm\b[\w/.-]{0,80}[ \t]{1,80}serve\b|vllm\.entrypoints\.openai")


class Form(Struct, frozen=True):
    """A file with what it starts; or a container, whose name is `path`."""

    path: str
    kind: str
    launches: list[Launch]
    folder: str
    """The folder where relative paths begin; empty where the text is no file's."""


def unreadable_error(text: str, path: Path, fault: str, hint: str = READ) -> ConfigError:
    """The error for a text: what it looks like and what to do instead; else the fault, with its line, and the hint."""
    for kind, begin, instead in _NEVER_READ if path.suffix in SUFFIXES else _UNREADABLE:
        if re.match(begin, text):
            return ConfigError(printable(f"{path}: line 1: looks like {kind}: {instead}"), READ)
    return ConfigError(printable(f"{path}: {fault}"), hint)


def _find_kind(text: str) -> str:
    """The kind of form that the text is; empty for none."""
    if any(re.match(begin, text) for _, begin, _ in _NEVER_READ):
        return ""
    if _MAPPING.match(text):
        return "compose" if _COMPOSE.search(text) else ""
    return "systemd unit" if is_unit(text) else "command line" if _COMMAND.search(text) else ""


def read_form(text: str, path: Path, overrides: Overrides, service: str = "", *, owner: int | None) -> Form | None:
    """Read a form; None for another text. `owner`: uid of the owner of the text's file `path`; None for no file.

    Raises ConfigError with the line.
    """
    kind = _find_kind(text)
    if not kind:
        return None
    if unused := [name for name in overrides if not re.search(rf"\b{re.escape(name)}\b", text)]:
        raise ConfigError(f"-o {sanitize(unused[0])}: nothing in {path} is filled in by that name")
    is_page = (kind, path.suffix in SUFFIXES) == ("command line", False) and bool(re.match(_FENCED, text))
    folder = str(path.absolute().parent) if owner is not None else ""
    values = {"HOME": _find_home(), **({"PWD": folder} if folder else {}), **overrides}
    variables = Variables(values, frozenset(overrides))
    try:
        launches = _read_launches(text, kind, variables, service, path, owner)
    except LaunchError as error:
        fault = _make_fault(str(path), error.line, str(error))
        raise (unreadable_error(text, path, "") if is_page else fault) from None
    if is_page and not launches:
        raise unreadable_error(text, path, "")
    for launch in launches:
        launch.overrides = overrides
    return Form(str(path), kind, launches, folder)


def _read_launches(
    text: str, kind: str, variables: Variables, service: str, path: Path, owner: int | None
) -> list[Launch]:
    """Read the launches; for a compose file also the file `.env` beside it. Raises LaunchError."""
    if kind in _LAUNCH_READERS:
        return _LAUNCH_READERS[kind](text, variables)
    env_file = {} if owner is None else _read_env_file(path.parent / ".env", owner, variables)
    return read_compose(text, variables, service, env_file)


def _find_home() -> str:
    """The home of the user who imports, also under sudo, where HOME is root's."""
    if os.geteuid() == 0 and (user := os.environ.get("SUDO_USER")):
        with suppress(KeyError):
            return pwd.getpwnam(user).pw_dir
    return str(Path.home())


def _read_env_file(path: Path, owner: int, variables: Variables) -> dict[str, str]:
    """Read the file that docker reads beside a compose file. A link is not followed.

    It must belong to `owner`, as the compose file does: else a user who puts another folder in the place of their own
    could have root's values written into a recipe that all may read.
    """
    try:
        file = Files().itself(str(path.absolute()), LIMIT_BYTES)
        if file.facts.kind is not Kind.FILE:
            return {}
        if file.facts.uid != owner:
            reason = f"{path}: is of uid {file.facts.uid}, the compose file of {owner}: its values are not taken"
            raise ConfigError(printable(reason), "copy both into a folder of your own")
        return parse_env_file(file.content.decode("utf-8-sig"), variables)
    except FileNotFoundError:
        return {}
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR):
            return {}
        raise ConfigError(printable(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}")) from None
    except UnicodeDecodeError:
        raise ConfigError(printable(f"{path}: is no UTF-8 text")) from None
    except CommandError as error:
        raise _make_fault(str(path), 1, str(error)) from None


def form_of_container(name: str, host: Host) -> Form:
    """Read what a container of this machine's docker runs. Raises ConfigError."""
    try:
        launch = query(host, lambda docker: read_container(docker, name))
    except DockerError as error:
        raise ConfigError(f"docker: {error}") from None
    if launch is None:
        raise ConfigError(printable(f"docker has no container {name[:80]}"), "sudo docker ps -a")
    return Form(name, CONTAINER, [launch], "")


def combine(forms: list[Form], image: str) -> tuple[Source, ForeignRecipe, Serve]:
    """Combine forms that start one engine; each starts it on one node. Raises ConfigError with file and line."""
    # What starts no engine by itself has notes, too.
    bare_launches = [(form.path, launch) for form in forms for launch in form.launches if not launch.image]
    bare_notes = [
        replace(note, text=shown(note.text), file=path) for path, launch in bare_launches for note in launch.notes
    ]
    engines = _find_engines(forms, image)
    if not engines:
        raise _explain_no_engine(forms)
    for form in forms:
        if len(names := [engine.launch.service for path, engine in engines if path == form.path]) > 1:
            starters = "commands: keep one of them"
            if any(names):
                starters = f"services {', '.join(names)}: name one by --service"
            raise _make_fault(form.path, 1, f"vLLM is started by {len(names)} {starters}")
    try:
        engine = merge(engines)
    except LaunchError as error:
        raise _make_fault(error.file, error.line, str(error)) from None
    launch, kind = engine.launch, forms[0].kind
    known_texts = {note.text for note in launch.notes}
    launch.notes += [note for note in dict.fromkeys(bare_notes) if note.text not in known_texts]
    nodes = len(engines), len(engines) if engines[1:] else None  # least, most
    source = Source(Document({}, {(): launch.line}), notes=launch.notes, file=engines[0][0])
    source.container = shlex.quote(forms[0].path) if kind == CONTAINER else ""
    source.is_running_here = bool(source.container) and not image
    command, secrets = shlex.join(engine.words), engine.secrets
    foreign = ForeignRecipe(kind, "", launch.image, command, engine.env, engine.container, nodes, secrets=secrets)
    return source, foreign, engine.serve


def _explain_no_engine(forms: list[Form]) -> ConfigError:
    """The error for forms without an engine: an unknown image, a script that would start it, or neither."""
    reason = "starts no vLLM server by itself"
    launches = [(form.path, launch) for form in forms for launch in form.launches]
    for path, launch in launches:
        if unknown(launch.image):
            return _make_fault(path, launch.line, f"image: {explain_missing(launch.image)}")
    for path, launch in launches:
        if script := shown(find_script(launch.words))[:200]:
            hint = "import that script by its path on the node"
            return _make_fault(path, launch.line, f"{reason}, but runs {script}: {hint}")
    hint = "import the file with `vllm serve` or vLLM's image, or --container NAME"
    return _make_fault(forms[0].path, 1, f"{reason}: {hint}")


def _find_engines(forms: list[Form], image: str) -> list[tuple[str, Engine]]:
    """Path and engine of each launch that starts one.

    An engine without an image, as of `docker exec`, runs in the only container that starts no engine itself, if any.
    """
    launches = [(form, launch) for form in forms for launch in form.launches]
    engines, idle_containers = list[tuple[str, Engine]](), list[tuple[str, Launch]]()
    # Containers come first, since the other launches may run in one.
    for form, launch in sorted(launches, key=lambda pair: not pair[1].image):
        has_no_image = not launch.image
        if has_no_image and len(idle_containers) == 1:
            file, container = idle_containers[0]
            launch.image = container.image
            launch.options = [option._replace(file=file) for option in container.options]
            container_env = {name: option._replace(file=file) for name, option in container.env.items()}
            launch.env = {**container_env, **launch.env}
            launch.notes = [*(replace(note, file=file) for note in container.notes), *launch.notes]
        if not launch.image:
            for variable in [name for name in OF_IMAGE if name in launch.env]:
                launch.note(launch.env.pop(variable), f"{variable}: left out: the image has its own")
        try:
            engine = find_engine(launch, form.folder)
        except LaunchError as error:
            raise _make_fault(form.path, error.line, str(error)) from None
        if engine is None:
            idle_containers += [] if has_no_image else [(form.path, launch)]
            continue
        if not launch.image:
            engine.serve = replace(engine.serve, entrypoint=VLLM_SERVE)  # its path is the node's
        launch.image = image or launch.image
        if not launch.image:
            raise _make_fault(form.path, launch.line, "names no image to run it in: --image REF names one")
        engines.append((form.path, engine))
    return engines


def _make_fault(path: str, line: int, reason: str) -> ConfigError:
    return ConfigError(printable(f"{path}: line {line}: {redact(reason)}"))
