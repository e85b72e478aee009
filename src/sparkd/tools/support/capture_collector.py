"""The collector of `sparkd capture`: it finds the secrets to hide, and puts all parts into the archive."""

import asyncio
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from shlex import quote
from string import Template
from typing import TypeVar

import msgspec

from sparkd import __version__
from sparkd.agent.actions import history
from sparkd.agent.actions.files import write
from sparkd.agent.actions.shared_folders import run_as_owner
from sparkd.base.cluster import head_key, membership
from sparkd.base.config import Settings, load_settings
from sparkd.base.host import Host, caches, versions
from sparkd.base.host.files import Kind
from sparkd.base.host.gpu import read_clocks, read_driver
from sparkd.base.lib import read_data
from sparkd.base.lib.errors import BlockedError, SparkdError, UsageError
from sparkd.base.lib.redaction import HIDDEN, Redaction
from sparkd.base.lib.text import counted, sanitize
from sparkd.base.state.file import STACKS
from sparkd.base.status.model import read_report
from sparkd.tools.measure.interrupts import hold_signals, report_progress
from sparkd.tools.measure.past import history_as_json
from sparkd.tools.node import known_good, render
from sparkd.tools.node.dry_run import examine_settings
from sparkd.tools.node.plan_text import plan_as_json
from sparkd.tools.support.archive import MOST_BYTES, Archive
from sparkd.tools.support.capture_tree import read_machine, redact_docker
from sparkd.tools.support.nodes_reader import NodesReader, find_failures
from sparkd.tools.support.summary import summarize

T = TypeVar("T")

PART_SECONDS, NODES_SECONDS = 20.0, 60.0
"""Limits for one part, and for the logs of all nodes with what the others report."""
SETTINGS_FOLDER, SETTINGS_SUFFIXES = "/etc/sparkd", (".toml", ".yaml", ".yml")
INSPECTED_KEYS = (
    "Id", "Created", "Path", "State", "Image", "Name", "RestartCount", "Driver", "Platform", "HostConfig", "Mounts",
)  # fmt: skip
"""Keys of docker's description of a container that the archive has."""


class Collector:
    """Collects an archive. Each part has a deadline of its own, and is named in `missing` where it can't be read."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.missing: list[str] = []
        """What could not be read, each with the reason."""
        settings = self.attempt(
            "settings (LOOK FOR SECRETS that they name)", lambda: load_settings(os.environ, Path(host.files.root))
        )
        self.settings = settings or Settings()
        plan_secrets = self.attempt("the plan's secrets (LOOK FOR THEM)", self._find_plan_secrets)
        self.secret_files = frozenset(
            {*self._list_configured_secrets(), *self._find_private_files(), *(plan_secrets or ())} - {""}
        )
        self.redact = Redaction(text for path in self.secret_files if (text := self._read_secret(path)))

    def _list_configured_secrets(self) -> Iterator[str]:
        yield from (self.settings.cluster.key_file, head_key.PRIVATE)
        yield from (self.settings.observe.token_file, self.settings.notify.webhook_file)
        yield from self.settings.engine.secrets.values()

    def _find_plan_secrets(self) -> list[str]:
        return [secret.file for secret in membership.resolve_context(self.settings, None, self.host).plan.secrets]

    def _find_private_files(self) -> Iterator[str]:
        """Files next to the settings that only root may read: a broken configuration does not name its secrets."""
        for name in self.host.files.names_if_any(SETTINGS_FOLDER):
            path = f"{SETTINGS_FOLDER}/{name}"
            with suppress(OSError):
                facts = self.host.files.lstat(path)
                if facts.kind is Kind.FILE and not facts.permissions & 0o077 and not name.endswith(SETTINGS_SUFFIXES):
                    yield path

    def _read_secret(self, path: str) -> str | None:
        name = f"the content of {path} (LOOK FOR IT, it is not hidden)"
        return self.attempt(name, lambda: self.host.files.text(path, 1 << 16) if self.host.files.exists(path) else "")

    def attempt(self, name: str, work: Callable[[], T], seconds: float = PART_SECONDS) -> T | None:
        """Do the work in a thread, and return its result. None where it fails or takes too long: `missing` says so."""
        outcome = Future[T]()

        def run() -> None:
            try:
                outcome.set_result(work())
            except BaseException as error:
                outcome.set_exception(error)

        threading.Thread(target=run, name=name, daemon=True).start()
        try:
            return outcome.result(seconds)
        except Exception as error:  # a part less is better than no archive
            is_expected = isinstance(error, SparkdError | OSError | ValueError)
            reason = str(error) if is_expected else f"{type(error).__name__}: {error}"
            self.missing.append(f"{name}: {sanitize(reason) or f'not read within {seconds:g} s'}")
            return None

    def save(self, output: str | None) -> tuple[Path, int]:
        """Write the archive to a new file, which only its owner can read. Returns its path and its length in bytes.

        It belongs to root; in a folder of the user who became root by sudo, to that user. Raises OSError, UsageError,
        SharedFolderError.
        """
        at = datetime.now(UTC)
        name = f"sparkd-capture-{re.sub(r'[^A-Za-z0-9.-]', '_', self.host.name())}-{at:%Y%m%dT%H%M%SZ}"
        path = Path(output or f"{name}.tar.gz")
        private_command = f"sudo sparkd capture --output /root/{name}.tar.gz"
        do_as_owner = partial(run_as_owner, path.parent, private_hint=private_command)
        is_created = False
        try:
            with hold_signals():
                self._create(path, do_as_owner, name)
                is_created = True
            content = self._build_archive(name, at)
            # In place of the first file, for which another user who may write to the folder may have put one of his.
            do_as_owner(lambda: write(path, content, 0o600, durable=False))
        except BaseException as error:
            if is_created:
                do_as_owner(path.unlink)  # an incomplete archive is of no use
            if isinstance(error, KeyboardInterrupt):
                report_progress(f"ended early: {path} is not written")
            raise
        return path, len(content)

    def _create(self, path: Path, do_as_owner: Callable[[Callable[[], object]], None], name: str) -> None:
        """Create the file first, so that a fault ends the command before minutes of reading. Raises as `save`."""
        try:
            do_as_owner(lambda: path.touch(0o600, exist_ok=False))  # follows no link
        except FileExistsError:
            command = f"sudo sparkd capture --output {quote(str(path.with_name(f'{name}.tar.gz')))}"
            raise UsageError(f"{path} is there already", command) from None

    def _build_archive(self, name: str, at: datetime) -> bytes:
        out = Archive(name, at, self.redact)
        for path, work in self._list_parts():
            if (part := self.attempt(path, work)) is not None:
                out.add(path, part)
        nodes = NodesReader(self.settings, self.host, self.missing)
        self.attempt("nodes", lambda: asyncio.run(nodes.read_all(find_failures(self.host.files))), NODES_SECONDS)
        for path, text in tuple(nodes.texts.items()):  # also without those that took too long
            out.add(path, text)
        tree = self.attempt("tree", lambda: read_machine(self.settings, self.host, self.secret_files))
        for member in tree or ():
            out.add(f"tree{member.path}", member.content, member.target, executable=member.executable)
        if out.left_out:
            self.missing.append(f"{counted(out.left_out, 'file')}: the archive would be over {MOST_BYTES >> 20} MiB")
        out.add("README.txt", self._format_readme(name))
        return out.close()

    def _list_parts(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Path in the archive, and the function that returns the text."""
        yield "summary.md", lambda: summarize(self.settings, self.host)
        yield "preflight.json", lambda: render.as_json(examine_settings(self.settings, self.host))
        yield "report.json", lambda: read_report(self.host.files)
        yield "plan.json", lambda: plan_as_json(membership.resolve_context(self.settings, None, self.host).plan)
        yield "diff.txt", self._describe_differences
        yield "versions.json", lambda: _format_json(dict(versions.read_versions(self.host)))
        yield "gpu.json", lambda: _format_json(msgspec.to_builtins((read_driver(), read_clocks())))
        yield "caches.txt", lambda: caches.describe_all(self.host.files)
        yield "containers.json", self._describe_containers
        yield "history.json", self._read_history
        for name in self.host.files.names_if_any(STACKS):
            yield f"stacks/{name}", partial(self.host.files.text, f"{STACKS}/{name}")

    def _describe_differences(self) -> str:
        entries = known_good.read_known_good(self.host)
        if not entries:
            return "no start is known good on this node yet\n"
        now = known_good.gather_facts(self.host, membership.make_context(self.settings, self.host).plan)
        return f"{known_good.as_text(entries[0], now)}\n"

    def _read_history(self) -> str:
        files = self.host.files
        return f"{history_as_json(history.read(files), history.read_totals(files), 100)}\n"

    def _describe_containers(self) -> str:
        """JSON on sparkd's containers, without the values of their environment, with the beginning of their command."""
        facts = self.host.docker()
        if not facts.running or facts.error:
            raise BlockedError(facts.error or "docker is not running")
        with closing(self.host.docker_reader()) as reader:
            answers = [reader.container(container.id) for container in facts.containers if container.ours]
        return _format_json([_describe_container(answer) for answer in answers if isinstance(answer, dict)])

    def _format_readme(self, name: str) -> str:
        missing = "\n".join(f"  {line}" for line in self.missing) or "  nothing"
        text = Template(read_data("capture-readme.txt").decode())
        return text.substitute(name=name, version=__version__, hidden=HIDDEN, missing=missing)


def _describe_container(answer: Mapping[str, object]) -> dict[str, object]:
    """The public part of docker's description of a container."""
    config = answer.get("Config")
    config = config if isinstance(config, dict) else {}
    variable_names = [str(line).partition("=")[0] for line in config.get("Env") or ()]
    return {
        **{key: redact_docker(answer.get(key), key) for key in INSPECTED_KEYS},
        "Labels": config.get("Labels"),
        "Env": variable_names,
        "ImageName": config.get("Image"),
    }


def _format_json(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
