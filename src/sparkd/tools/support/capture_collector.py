"""The collector of `sparkd capture`: puts all parts into the archive, without secrets."""

import asyncio
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
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
from sparkd.base.cluster import membership
from sparkd.base.config import Settings, load_settings
from sparkd.base.host import Host, caches, versions
from sparkd.base.host.gpu import read_clocks, read_driver
from sparkd.base.lib import read_data, start_thread
from sparkd.base.lib.errors import SparkdError, UsageError
from sparkd.base.lib.redaction import HIDDEN, Redaction
from sparkd.base.lib.text import counted, sanitize
from sparkd.base.state.file import STACKS
from sparkd.base.status.model import read_report
from sparkd.tools.measure.interrupts import hold_signals, report_progress
from sparkd.tools.measure.past import history_as_json
from sparkd.tools.node import known_good, render
from sparkd.tools.node.dry_run import examine_settings
from sparkd.tools.node.plan_text import plan_as_json
from sparkd.tools.support import capture_secrets
from sparkd.tools.support.archive import MOST_BYTES, Archive
from sparkd.tools.support.capture_tree import describe_containers, read_machine
from sparkd.tools.support.nodes_reader import NodesReader, find_failures
from sparkd.tools.support.summary import summarize

T = TypeVar("T")

PART_SECONDS, NODES_SECONDS = 20.0, 60.0
"""Limits for one part, and for the logs of all nodes with what the others report."""


class Collector:
    """Collects an archive. Each part has a deadline of its own, and is named in `missing` where it can't be read."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.missing: list[str] = []
        """What could not be read, each with the reason."""
        load = partial(load_settings, os.environ, Path(host.files.root))
        note = capture_secrets.UNHIDDEN
        self.settings = self.attempt(f"settings ({note})", load) or Settings()
        list_planned = partial(capture_secrets.list_planned, self.settings, host)
        planned = self.attempt(f"the plan's secrets ({note})", list_planned) or ()
        configured = capture_secrets.list_configured(self.settings)
        self.secret_files = frozenset({*configured, *capture_secrets.list_private_files(host), *planned} - {""})
        read = partial(capture_secrets.read_secret, host)
        contents = (self.attempt(f"the content of {path} ({note})", partial(read, path)) for path in self.secret_files)
        self.redact = Redaction(filter(None, contents))

    def attempt(self, name: str, work: Callable[[], T], seconds: float = PART_SECONDS) -> T | None:
        """Do the work in a thread, and return its result. None where it fails or takes too long: `missing` says so."""
        outcome = Future[T]()

        def run() -> None:
            try:
                outcome.set_result(work())
            except BaseException as error:
                outcome.set_exception(error)

        try:
            start_thread(threading.Thread(target=run, name=name, daemon=True))
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
        yield "containers.json", lambda: _format_json(describe_containers(self.host))
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

    def _format_readme(self, name: str) -> str:
        missing = "\n".join(f"  {line}" for line in self.missing) or "  nothing"
        text = Template(read_data("capture-readme.txt").decode())
        return text.substitute(name=name, version=__version__, hidden=HIDDEN, missing=missing)


def _format_json(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
