"""Stamps of the files from which a process has its plan: where one changes, the next process makes another plan.

A stamp is only compared. It has the inode, size and time of each file, so that an edit changes it, and so does a
replacement. That of /etc/sparkd is taken before these files are read, as `Agent.configured_at`: an edit in between
counts as a change.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path

import sparkd
from sparkd.agent.daemon.context import Agent
from sparkd.base.cluster.head_key import PRIVATE, PUBLIC
from sparkd.base.lib.errors import OutdatedPlanError
from sparkd.base.lib.main_loop import MainLoop

FOLDER = "etc/sparkd"
PROGRAM = Path(sparkd.__file__)
"""An upgrade replaces it, and restarts no agent: one that waits is to start again with it."""
FORM = "3:"
"""What a digest is made of, by number: those of two versions of sparkd are compared only where it is the same."""
LOOK_SECONDS = 2.0
"""Limit for a look: milliseconds, unless a file server hangs. The other nodes wait for an agent meanwhile."""
Stamp = Mapping[Path, tuple[int, ...]]


def stamp_configuration(root: str | os.PathLike[str]) -> Stamp:
    """A stamp that changes with every edit below /etc/sparkd, and an upgrade. Unlistable folders are left out."""
    path = Path(root, FOLDER)  # named where a share that a link leads to hangs: `find_path`
    names = (Path(folder, name) for folder, folders, files in os.walk(path) for name in (*folders, *files))
    # What is read of a folder that a link leads to, and no more: a checkout has thousands of files.
    tops = chain.from_iterable(islice(os.walk(path / name), 1) for name in ("conf.d", "recipes"))
    linked = (Path(folder, name) for folder, _, files in tops for name in files if name.endswith((".toml", ".yaml")))
    return _stamp_files({PROGRAM, *names, *linked})


def look_at_configuration(loop: MainLoop, root: str | os.PathLike[str], unknown: Stamp) -> Stamp:
    """Its stamp, taken beside the loop; `unknown` where a share that a link leads to hangs. A stop waits for it: one
    that comes during a reload ends the rank once that is taken over.
    """
    with suppress(OSError):
        look = partial(stamp_configuration, root)
        return loop.beside(look, LOOK_SECONDS, "looking at the configuration", shielded=True)
    return unknown


def digest_stamp(agent: Agent) -> str:
    """Digest of `Agent.configured_at` for an agent that takes over the rank of this one, behind FORM.

    The cluster's keys are left out: an agent that runs reads them again, so that a new one counts at once. The program
    is, too, since it runs the rank as it is.
    """
    root, key_file = agent.host.files.root, agent.context.configured.cluster.key_file
    left_out = {PROGRAM, *(Path(root, path.lstrip("/")) for path in (key_file, PRIVATE, PUBLIC))}
    stamps = {path: stamp for path, stamp in agent.configured_at.items() if path not in left_out}
    return FORM + sha256(repr(stamps).encode()).hexdigest()


def _stamp_files(paths: Iterable[Path]) -> Stamp:
    """A stamp of these files and folders. Those that can't be read are left out."""
    stamps = dict[Path, tuple[int, ...]]()
    for path in sorted(paths):
        with suppress(OSError):
            status = path.stat()
            stamps[path] = status.st_ino, status.st_size, status.st_mtime_ns
    return stamps


class ConfigurationWatch:
    """Compares the files from which this process has its plan with their first stamps.

    A look that hangs counts as no change.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._named_files = self._stamp_named_files(None)
        """Their first stamp; None until a look has not hung."""

    def raise_if_outdated(self) -> None:
        """Raises OutdatedPlanError (exit 10) where the configuration, or a file that it names, is another one now."""
        named_files = self._stamp_named_files(self._named_files)
        if self._named_files is None:
            self._named_files = named_files
        agent, stamp = self._agent, self._agent.configured_at
        if named_files != self._named_files or look_at_configuration(agent.loop, agent.host.files.root, stamp) != stamp:
            raise OutdatedPlanError("the configuration, or sparkd itself, has changed", "sparkd restarts with it")

    def _stamp_named_files(self, previous: object) -> object:
        """The stamp of files that the configuration names, and a process reads once. `previous` where they hang."""
        agent, settings = self._agent, self._agent.context.configured
        paths = [*(secret.file for secret in agent.plan.secrets), settings.cluster.key_file, settings.engine.recipe]
        look = partial(_stamp_files, [Path(path) for path in paths if path.startswith("/")])
        return agent.look(look, agent.pace.look_seconds, "looking at the configuration's files", previous)
