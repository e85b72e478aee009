"""The parts of the archive of `sparkd capture`, from this node and from the other agents; a summary for a forum."""

import asyncio
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from shlex import quote
from string import Template
from typing import TypeVar

import msgspec

from sparkd import __version__
from sparkd.agent.actions import history as store
from sparkd.agent.actions.shared_folders import as_owner
from sparkd.agent.cluster import inventory
from sparkd.agent.cluster.client import Source, UnsignedError
from sparkd.agent.cluster.node_logs import Entry, merge, open_logs
from sparkd.agent.cluster.peer_reader import PeerReader, parse_peer_report
from sparkd.base.cluster import head_key, membership
from sparkd.base.cluster.auth import KeyRing
from sparkd.base.config import Settings, load_settings
from sparkd.base.host import Host, caches, versions
from sparkd.base.host.files import Kind
from sparkd.base.host.gpu import read_clocks, read_driver
from sparkd.base.host.journal import LATEST_US, Query
from sparkd.base.lib import read_data
from sparkd.base.lib.errors import BlockedError, SparkdError, UsageError
from sparkd.base.lib.http_client import HttpError
from sparkd.base.lib.redaction import HIDDEN, Redaction
from sparkd.base.lib.slow_document import ANSWER_SECONDS
from sparkd.base.lib.text import sanitize
from sparkd.base.state import launch_history
from sparkd.base.state.file import STACKS
from sparkd.base.status import model
from sparkd.base.status.model import read_report
from sparkd.tools.measure.interrupts import held_back
from sparkd.tools.measure.past import history_as_json
from sparkd.tools.node import known_good, render
from sparkd.tools.node.dry_run import look_at
from sparkd.tools.node.plan_text import plan_as_json
from sparkd.tools.node.render import Shown
from sparkd.tools.support.capture_tree import MOST_BYTES, Archive, read_machine, without_commands

T = TypeVar("T")

PART_SECONDS, NODES_SECONDS = 20.0, 60.0
FOLDER, SETTINGS = "/etc/sparkd", (".toml", ".yaml", ".yml")
BEFORE_FAILURE, AFTER_FAILURE = timedelta(minutes=15), timedelta(minutes=1)
"""The window of log lines around a failure."""
INSPECTED = (
    "Id", "Created", "Path", "State", "Image", "Name", "RestartCount", "Driver", "Platform", "HostConfig", "Mounts",
)  # fmt: skip
"""Keys of docker's description of a container that the archive has."""


class Collector:
    """Collects an archive. Each part has a deadline of its own, and is named in `missing` where it can't be read."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.missing: list[str] = []
        self.of_nodes = dict[str, str]()
        """Texts from other nodes, by their path in the archive."""
        settings = self._attempt(
            "settings (LOOK FOR SECRETS that they name)", lambda: load_settings(os.environ, Path(host.files.root))
        )
        self.settings = settings or Settings()
        plan_secrets = self._attempt("the plan's secrets (LOOK FOR THEM)", self._find_plan_secrets)
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
        for name in self.host.files.names_if_any(FOLDER):
            path = f"{FOLDER}/{name}"
            with suppress(OSError):
                facts = self.host.files.lstat(path)
                if facts.kind is Kind.FILE and not facts.permissions & 0o077 and not name.endswith(SETTINGS):
                    yield path

    def _read_secret(self, path: str) -> str | None:
        name = f"the content of {path} (LOOK FOR IT, it is not hidden)"
        return self._attempt(name, lambda: self.host.files.text(path, 1 << 16) if self.host.files.exists(path) else "")

    def _attempt(self, name: str, work: Callable[[], T], seconds: float = PART_SECONDS) -> T | None:
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
        put = partial(as_owner, path.parent, private=private_command)
        is_created = False
        try:
            with held_back():
                self._create(path, put, name)
                is_created = True
            content = self._build_archive(name, at)
            put(lambda: path.write_bytes(content))
        except BaseException:
            if is_created:
                put(path.unlink)  # an incomplete archive is of no use
            raise
        return path, len(content)

    def _create(self, path: Path, put: Callable[[Callable[[], object]], None], name: str) -> None:
        """Create the file first, so that a fault ends the command before minutes of reading. Raises as `save`."""
        try:
            put(lambda: path.touch(0o600, exist_ok=False))  # follows no link
        except FileExistsError:
            command = f"sudo sparkd capture --output {quote(str(path.with_name(f'{name}.tar.gz')))}"
            raise UsageError(f"{path} is there already", command) from None

    def _build_archive(self, name: str, at: datetime) -> bytes:
        out = Archive(name, at, self.redact)
        for path, work in self._list_parts():
            if (part := self._attempt(path, work)) is not None:
                out.add(path, part)
        self._attempt("nodes", lambda: asyncio.run(self._read_nodes()), NODES_SECONDS)
        for path, text in tuple(self.of_nodes.items()):  # also without those that took too long
            out.add(path, text)
        tree = self._attempt("tree", lambda: read_machine(self.settings, self.host, self.secret_files))
        for member in tree or ():
            out.add(f"tree{member.path}", member.content, member.target, executable=member.executable)
        if out.left_out:
            self.missing.append(f"{out.left_out} files: the archive would be over {MOST_BYTES >> 20} MiB")
        out.add("README.txt", self._format_readme(name))
        return out.close()

    def _list_parts(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Path in the archive, and the function that returns the text."""
        yield "summary.md", lambda: summarize(self.settings, self.host)
        yield "preflight.json", lambda: render.as_json(look_at(self.settings, self.host))
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
        return f"{history_as_json(store.read(files), store.read_totals(files), 100)}\n"

    def _describe_containers(self) -> str:
        """JSON on sparkd's containers, without the values of their environment, with the beginning of their command."""
        facts = self.host.docker()
        if not facts.running or facts.error:
            raise BlockedError(facts.error or "docker is not running")
        described = []
        with closing(self.host.docker_reader()) as reader:
            for container in facts.containers:
                answer = reader.container(container.id) if container.ours else None
                if isinstance(answer, dict):
                    config = answer.get("Config") or {}
                    fields = {key: without_commands(answer.get(key), key) for key in INSPECTED}
                    variables = [str(line).partition("=")[0] for line in config.get("Env") or ()]
                    more_fields = {"Labels": config.get("Labels"), "Env": variables, "ImageName": config.get("Image")}
                    described.append({**fields, **more_fields})
        return _format_json(described)

    async def _read_nodes(self) -> None:
        """Read the logs of all nodes, and what the agents of the others report."""
        await self._read_reports(await self._read_logs())

    async def _read_logs(self) -> set[str]:
        """Read the logs of the last day, and around the last failures. Returns addresses of nodes that do not answer.

        Such a node is left out of the windows that follow.
        """
        silent = set[str]()
        now = datetime.now(UTC)
        failures = ((at - BEFORE_FAILURE, at + AFTER_FAILURE) for at in self._find_failures())
        windows = [(now - timedelta(days=1), None), *failures]
        for since, until in windows:
            query = Query(_to_microseconds(since), LATEST_US if until is None else _to_microseconds(until))
            async with open_logs(self.settings, self.host) as (opened, trouble):
                logs = [log for log in opened if log.name not in silent]
                answers = await asyncio.gather(*(log.next(query) for log in logs))
            if trouble and until is None:
                self.missing.append(f"lines of other nodes: {sanitize(trouble, 400)}")
            name = "recent" if until is None else f"until-{until:%Y%m%dT%H%M%SZ}"
            self.of_nodes[f"logs/{name}.log"] = "".join(map(_format_line, merge(entries for entries, _ in answers)))
            for log, (entries, trouble) in zip(logs, answers, strict=True):
                if trouble:
                    silent |= {log.name} if log.name and not entries else set()
                    place = f"{log.name} (there: sudo sparkd capture)" if log.name else "this node"
                    self.missing.append(f"lines of {place}, {name}: {trouble}")
        return silent

    async def _read_reports(self, silent: set[str]) -> None:
        rank = membership.find_place(self.settings, self.host).rank
        if not (peers := membership.peers_of(self.settings, rank)):
            return
        keys = KeyRing(self.host.files, self.settings.cluster.key_file).keys
        own_address, port = self.settings.cluster.nodes[rank], self.settings.cluster.report_port
        for peer in peers:
            if peer.address in silent:
                continue
            reader = PeerReader(Source(*peer, port, own_address, 0, ANSWER_SECONDS), keys, lambda: None)
            try:
                report = parse_peer_report(await reader.fetch("/report"), peer.rank)
                self.of_nodes[f"nodes/{peer.address}/report.json"] = model.dump(report) if report else ""
                peer_inventory = inventory.parse(await reader.fetch(inventory.PATH))
                self.of_nodes[f"nodes/{peer.address}/inventory.json"] = inventory.dump(peer_inventory).decode()
            except (HttpError, UnsignedError, ValueError) as error:
                place = f"{peer.address} (there: sudo sparkd capture)"
                self.missing.append(f"report of {place}: {sanitize(str(error))}")

    def _find_failures(self) -> list[datetime]:
        """Times of the last two failures, the newest first."""
        history = launch_history.read_history(self.host.files)
        ends = (*history.ends, *([history.last_cause] if history.last_cause else []))
        stamps = sorted({end.at for end in ends if end.at}, reverse=True)[:2]
        failures = []
        for stamp in stamps:
            with suppress(ValueError):
                failures.append(datetime.fromisoformat(stamp))
        return failures

    def _format_readme(self, name: str) -> str:
        missing = "\n".join(f"  {line}" for line in self.missing) or "  nothing"
        text = Template(read_data("capture-readme.txt").decode())
        return text.substitute(name=name, version=__version__, hidden=HIDDEN, missing=missing)


def _format_line(entry: Entry) -> str:
    at = datetime.fromtimestamp(entry.at_us / 1e6, UTC).isoformat(timespec="milliseconds")
    return f"{at} {entry.node} <{entry.line.priority}> {entry.line.text}\n"


def _to_microseconds(at: datetime) -> int:
    return max(0, round(at.timestamp() * 1_000_000))


def _format_json(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def summarize(settings: Settings, host: Host) -> str:
    """A summary in Markdown for people who do not know the nodes, without the nodes' names."""
    preflight, report = look_at(settings, host), model.parse(read_report(host.files))
    programs = (f"{name} {text}" for name, text in versions.read_versions(host).items())
    lines, placeholders = [f"**{', '.join(programs)}**", ""], {host.name(): "this-node"}
    if report is None:
        lines.append("- no agent has run since the boot")
    else:
        placeholders |= {peer.report.node: f"rank{peer.rank}" for peer in report.peers if peer.report}
        state = f"phase `{report.phase.value}` since {report.since}: {report.message}"
        lines.append(f"- rank {report.rank} of {1 + len(report.peers)}; recipe `{report.recipe}`; {state}")
        if report.last_cause:
            lines.append(f"- the agent before ended: {report.last_cause} (hint: {report.last_hint or 'none'})")
        lines += (f"- ended {end.count} time(s) in a day: `{end.cause}`: {end.reason}" for end in report.restarts)
        lines += (f"- rank {peer.rank}: contact `{peer.contact.value}`" for peer in report.peers)
    lines += ["", "| check | level | found | hint |", "|---|---|---|---|", *_format_findings(preflight)]
    text = "\n".join(lines) + "\n"
    for name, placeholder in placeholders.items():
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", placeholder, text) if len(name) > 2 else text
    return text


def _format_findings(preflight: Shown) -> Iterator[str]:
    for finding in preflight.findings:
        if finding.verdict.level.value not in ("ok", "skipped"):
            cells = (finding.id, finding.verdict.level.value, finding.verdict.reason, finding.verdict.hint)
            yield f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"
