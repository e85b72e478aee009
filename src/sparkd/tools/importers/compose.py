"""Reads services of a compose file into the options of `docker run` (the Compose Specification)."""

import re
import shlex
from collections.abc import Iterator, Mapping

from msgspec import Struct

from sparkd.base.recipes.yaml import Document, YamlError, parse_as_pyyaml
from sparkd.tools.importers.marks import unknown
from sparkd.tools.importers.options import Launch, LineError, Option, port_text
from sparkd.tools.importers.source import as_mapping, shorten
from sparkd.tools.importers.variables import CommandError, Variables

_MOST_SERVICES = 200
_LIST_OPTIONS = {
    "volumes": "volume", "devices": "device", "ports": "publish", "cap_add": "cap-add", "security_opt": "security-opt",
}  # fmt: skip
"""The option of `docker run` for each entry of a service's list."""
_VALUE_OPTIONS = {
    "ipc": "ipc", "shm_size": "shm-size", "network_mode": "network", "privileged": "privileged", "init": "init",
    "mem_limit": "memory", "user": "user", "working_dir": "workdir", "gpus": "gpus", "pid": "pid",
    "platform": "platform",
}  # fmt: skip
"""The option of `docker run` for a service's single value."""
_TRUE = ("true", "yes", "y", "on")
_IGNORED_KEYS = (
    "image", "command", "entrypoint", "environment", "container_name", "restart", "logging", "healthcheck", "hostname",
    "labels", "depends_on", "stdin_open", "tty", "networks", "profiles", "pull_policy", "runtime", "expose",
    "stop_grace_period", "stop_signal", "env_file",
)  # fmt: skip
"""Keys that are read elsewhere, or that mean nothing for the engine: no note says that they are left out."""


def read_compose(text: str, variables: Variables, wanted: str, env_file: Mapping[str, str]) -> list[Launch]:
    """Read every service, or only the one that is wanted. Raises LineError."""
    try:
        document = parse_as_pyyaml(text, aliases=True)
    except YamlError as error:
        raise LineError(error.line, error.reason) from None
    services = document.data.get("services")
    if not isinstance(services, dict):
        raise LineError(document.line(("services",)), "services: must be a mapping")
    if len(services) > _MOST_SERVICES:
        raise LineError(document.line(("services",)), f"services: more than {_MOST_SERVICES}: keep the engine's")
    if wanted and wanted not in services:
        raise LineError(document.line(("services",)), f"no service is named {wanted}: {', '.join(services)[:200]}")
    chosen = ((name, data) for name, data in services.items() if wanted in ("", name) and isinstance(data, dict))
    return [_Service(document, name, data, variables, env_file).make_launch() for name, data in chosen]


class _Service(Struct):
    document: Document
    name: str
    data: dict[str, object]
    variables: Variables
    env_file: Mapping[str, str]

    def make_launch(self) -> Launch:
        if "extends" in self.data:
            reason = "extends: write the service out, or name another by --service"
            raise LineError(self._find_line("extends"), reason)
        line = self._find_line("command" if "command" in self.data else "image")
        launch = Launch(line, self._fill_text(self.data.get("image"), "image") or self._name_build(), service=self.name)
        launch.folder = self.variables.values.get("PWD", "")
        launch.words = self._read_words("command") or []
        entrypoint = self._read_words("entrypoint")
        # The program of an image that is built is not known, whatever the image is called.
        launch.entrypoint = [] if entrypoint is None and not self.data.get("image") else entrypoint
        if self.document.data.get("include"):
            text = "include: not read: write what the engine needs of it into this file"
            launch.note(self.document.line(("include",)), text)
        self._note_exposed_port(launch)
        launch.env = {option.name: option for option in self._read_environment(launch)}
        launch.options = list(self._read_options(launch))
        return launch

    def _note_exposed_port(self, launch: Launch) -> None:
        """Note where only other services reach the engine: sparkd's container has the node's network."""
        is_alone = len(as_mapping(self.document.data["services"])) == 1 or self.data.get("network_mode") == "host"
        if not self.data.get("ports") and not is_alone:
            text = "ports: none, yet the whole network will reach the engine: args.host 127.0.0.1 keeps it on the node"
            launch.note(launch.line, text)

    def _name_build(self) -> str:
        """The name that docker compose gives the image that it builds; empty where it builds none, or it is unknown."""
        values = self.variables.values
        project = values.get("COMPOSE_PROJECT_NAME") or self._fill_text(self.document.data.get("name"), "name")
        project = project or values.get("PWD", "").rpartition("/")[2]
        slug = re.sub(r"\A[_-]+|[^a-z0-9_-]", "", project.lower())
        return f"{slug}-{self.name}" if slug and self.data.get("build") and not unknown(project) else ""

    def _find_line(self, *steps: str) -> int:
        return self.document.line(("services", self.name, *steps))

    def _fill_text(self, value: object, *steps: str) -> str:
        """The text of a single value, with variables filled in. `steps`: its key. Raises LineError."""
        if isinstance(value, Mapping | list):
            raise LineError(self._find_line(*steps), f"{'.'.join(steps)}: must be text")
        if isinstance(value, bool):
            return str(value).lower()
        try:
            return self.variables.fill("" if value is None else str(value))
        except CommandError as error:
            raise LineError(self._find_line(*steps), f"{'.'.join(steps)}: {error}") from None

    def _read_words(self, name: str) -> list[str] | None:
        value = self.data.get(name)
        if isinstance(value, list):
            return [self._fill_text(word, name, f"[{number}]") for number, word in enumerate(value)]
        try:
            return None if value is None else shlex.split(self._fill_text(value, name))
        except ValueError as error:
            raise LineError(self._find_line(name), f"{name}: {str(error).lower()}") from None

    def _list_entries(self, name: str) -> Iterator[tuple[object, tuple[str, ...]]]:
        """Each entry of a list, or a single value, with its key."""
        value = self.data.get(name)
        entries = value if isinstance(value, list) else [] if value is None else [value]
        for number, entry_value in enumerate(entries):
            yield entry_value, (name, f"[{number}]")

    def _read_environment(self, launch: Launch) -> Iterator[Option]:
        """Yield the variables; note an env_file that is not read."""
        for entry_value, steps in self._list_entries("env_file"):
            env_file = entry_value if isinstance(entry_value, dict) else {"path": entry_value}
            path = shorten(env_file.get("path"))
            is_beside = path in (".env", "./.env")
            if is_beside and self.env_file:
                yield from (Option(name, value, self._find_line(*steps)) for name, value in self.env_file.items())
            elif not is_beside or env_file.get("required") is not False:  # a missing .env may be permitted
                text = f"env_file: {path[:80]}: not read: write its variables under env, secrets under secrets"
                launch.note(self._find_line(*steps), text)
        value = self.data.get("environment")
        if isinstance(value, dict):
            for name, assigned in value.items():
                text = (
                    self.variables.value(name) if assigned is None else self._fill_text(assigned, "environment", name)
                )
                yield Option(name, text, self._find_line("environment", name))
        elif isinstance(value, list):
            for assignment, steps in self._list_entries("environment"):
                name, equals, text = self._fill_text(assignment, *steps).partition("=")
                yield Option(name, text if equals else self.variables.value(name), self._find_line(*steps))

    def _read_options(self, launch: Launch) -> Iterator[Option]:
        """Yield the options of the other keys; note what is left out."""
        for name in self.data:
            line = self._find_line(name)
            if name in _VALUE_OPTIONS:
                yield from self._read_value(name, line)
            elif name in _LIST_OPTIONS:
                for entry_value, steps in self._list_entries(name):
                    yield Option(*self._read_entry(name, entry_value, steps), self._find_line(*steps))
            elif name == "ulimits":
                yield from self._read_ulimits()
            elif name == "deploy":
                yield from self._read_deploy(launch)
            elif name == "build":
                launch.note(line, "build: not done: where no registry has the image, `docker compose build` makes it")
            elif name not in _IGNORED_KEYS and not name.startswith("x-"):
                launch.note(line, f"{name}: left out: a recipe cannot say it")

    def _read_value(self, name: str, line: int) -> Iterator[Option]:
        text = "all" if name == "gpus" else self._fill_text(self.data[name], name)
        if name not in ("privileged", "init"):
            yield Option(_VALUE_OPTIONS[name], text, line)
        elif text.lower() in _TRUE:
            yield Option(name, "true", line)

    def _read_entry(self, name: str, entry_value: object, steps: tuple[str, ...]) -> tuple[str, str]:
        """Name and value of the option for an entry of a list."""
        if not isinstance(entry_value, dict):
            text = self._fill_text(entry_value, *steps)
            if name == "volumes" and text.startswith("~/"):
                text = self.variables.values.get("HOME", "") + text[1:]
            return _LIST_OPTIONS[name], text
        parts = {
            key: self._fill_text(part, *steps) for key, part in entry_value.items() if not isinstance(part, dict | list)
        }
        if name == "ports":
            return "publish", port_text(parts.get("host_ip", ""), parts.get("published", ""), parts.get("target", ""))
        suffix = ",readonly" if parts.get("read_only", "").lower() in _TRUE else ""
        return "mount", ",".join(f"{key}={parts.get(key, '')}" for key in ("type", "source", "target")) + suffix

    def _read_ulimits(self) -> Iterator[Option]:
        for name, limit in as_mapping(self.data["ulimits"]).items():
            ends = [limit.get("soft"), limit.get("hard")] if isinstance(limit, dict) else [limit]
            text = ":".join(self._fill_text(end, "ulimits", name) for end in ends)
            yield Option("ulimit", f"{name}={text}", self._find_line("ulimits", name))

    def _read_deploy(self, launch: Launch) -> Iterator[Option]:
        resources = as_mapping(as_mapping(self.data["deploy"]).get("resources"))
        if as_mapping(resources.get("reservations")).get("devices"):
            yield Option("gpus", "all", self._find_line("deploy"))
        if resources.get("limits"):
            text = "deploy.resources.limits: left out: use container.memory_limit_bytes"
            launch.note(self._find_line("deploy", "resources", "limits"), text)
