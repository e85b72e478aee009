"""A model's files on this node: their folder, whether they are whole, and their copies on other nodes."""

import os
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from sparkd.agent.actions.shared_folders import find_owner
from sparkd.agent.preflight.checks.weights import ModelWeights
from sparkd.base.cluster.membership import resolve_context
from sparkd.base.config import load_settings
from sparkd.base.host import Host, shm, weights
from sparkd.base.host.files import Kind
from sparkd.base.lib.errors import BlockedError, ConfigError, UsageError
from sparkd.base.lib.text import sanitize, size
from sparkd.base.plan.model import pull_command
from sparkd.tools.models.peers import require_room
from sparkd.tools.models.ssh import NOT_FOUND, SshHost, read_error

_RSYNC_OPTIONS = ("--partial-dir=.sparkd-partial", "--exclude=*.incomplete", "--exclude=.sparkd-partial/")
"""A file gets its name there once it is whole. The part of an interrupted one is kept in a folder, and resumed."""


def find_folder(word: str | None, host: Host) -> str:
    """The folder of the model of that name or path; without one, that of the plan's model."""
    if word and word.startswith("/"):
        return word.rstrip("/")
    configured = load_settings(os.environ)
    if word:
        return f"{configured.engine.models_dir}/{word.strip('/')}"
    return resolve_context(configured, None, host).plan.model_path


def describe_files(folder: str, host: Host) -> str:
    """A line on the model's files. Raises BlockedError (10) where the loader would fail."""
    with suppress(FileNotFoundError, NotADirectoryError):
        if host.files.stat(folder).kind is Kind.FILE:
            raise UsageError(f"{folder} is a file, not a model's folder", "name the folder that it is in")
    facts, verdict = ModelWeights(folder, pull=_find_pull(folder, host)).run(host)
    if not facts.exists:
        raise BlockedError(f"{folder} is missing or empty", _suggest_source(folder, host))
    if verdict.level.blocks:
        raise BlockedError(f"{folder}: {verdict.reason}", verdict.hint)
    return f"{folder}: {verdict.reason}"


def _find_pull(folder: str, host: Host) -> str:
    """The command that downloads the plan's model where this is its folder, else a command with a placeholder."""
    with suppress(ConfigError, UsageError, OSError):
        plan = resolve_context(load_settings(os.environ), None, host).plan
        if plan.model_path == folder and plan.model_pull:
            return plan.model_pull
    return pull_command(folder)


def _suggest_source(folder: str, host: Host) -> str:
    return f"{_find_pull(folder, host)}; or on a node that has it: sparkd model sync {shlex.quote(folder)}"


def is_open(folder: str, host: Host) -> bool:
    """Whether a program, such as a loading engine, has the model's files open."""
    with suppress(OSError):
        return bool(shm.find_uses(host.files, host.processes(), weights.list_shards(host.files, folder)).used)
    return False


def refuse_changed(
    folder: str, hashes: Mapping[str, str], host: Host, show: Callable[[str], None], count: Callable[[int], None]
) -> None:
    """Raises BlockedError (10) where a file has another SHA-256 than in `hashes`, by name, or can't be read.

    `show` gets the name of each file before it is read, `count` the bytes of each piece.
    """
    faults: dict[str, str] = {}
    for name, sha256 in hashes.items():
        show(name)
        try:
            if weights.compute_hash(host.files, f"{folder}/{name}", count) != sha256:
                faults[name] = "another SHA-256"
        except OSError as error:  # such as of a disk that fails
            faults[name] = f"it can't be read: {error.strerror}"
    if faults:
        name, fault = next(iter(faults.items()))
        more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        remove = shlex.join(("sudo", "rm", *(f"{folder}/{name}" for name in faults)))
        hint = f"{remove}\n{_suggest_source(folder, host)}\nsudo dmesg   # the disk"
        raise BlockedError(f"{folder}: {name}{more} is not what was downloaded: {fault}", hint)


def send_model(folder: str, show: Callable[[str], None], peer: SshHost, *, quick: bool) -> None:
    """Send the folder to a peer, and let sparkd there check it. `quick`: without reading all. Raises BlockedError."""
    source, prefix = f"{folder}/", f"{peer.address}: "
    options = (*_RSYNC_OPTIONS, *peer.choose_writer(folder))
    if ids := find_owner(Path(folder)):  # rsync follows links, and this owner may put one there to a file of root's
        options += (f"--copy-as={ids[0]}:{ids[1]}",)
    need_bytes, room = peer.count_to_send(source, folder, *options), peer.read_room(folder)
    if need_bytes:
        require_room(room, need_bytes, "", "", peer)
    show(prefix + (f"{size(need_bytes)} to send" if need_bytes else "nothing to send"))
    peer.send(source, folder, *options)
    show(f"{prefix}its files are checked there")
    check = ("sparkd", "model", "check", *(("--quick",) if quick else ()), "--", folder)
    check_end = peer.run(*check, seconds=4 * 3600.0)  # enough to read all of a slow disk
    if check_end.code == NOT_FOUND:
        show(f"{prefix}copied, each sent file with its checksum; it has no sparkd to check it with")
        return
    if check_end.code:
        lines = check_end.trouble.strip().splitlines() or [f"ended with {check_end.code}"]
        reason, hint = read_error(check_end.trouble) or (sanitize(lines[-1], 400), "")
        raise BlockedError(prefix + reason, hint)
    for line in check_end.answer.splitlines():
        show(f"{prefix}{sanitize(line, 400)}")
