"""Secrets of this node that `sparkd capture` hides: the files that have them, and their contents."""

from collections.abc import Iterator
from contextlib import suppress

from sparkd.base.cluster import head_key, membership
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.files import Kind

SETTINGS_FOLDER, SETTINGS_SUFFIXES = "/etc/sparkd", (".toml", ".yaml", ".yml")
UNHIDDEN = "the archive may contain secrets that were not hidden: look before you send it"
"""Follows where settings, plan or a secret's own file can't be read."""


def list_configured(settings: Settings) -> Iterator[str]:
    """Yield the files that the settings name; empty where one is not configured."""
    yield from (settings.cluster.key_file, head_key.PRIVATE)
    yield from (settings.observe.token_file, settings.notify.webhook_file)
    yield from settings.engine.secrets.values()


def list_planned(settings: Settings, host: Host) -> list[str]:
    """The files that the plan names, also by its recipe. Raises SparkdError."""
    return [secret.file for secret in membership.resolve_context(settings, None, host).plan.secrets]


def list_private_files(host: Host) -> Iterator[str]:
    """Yield files beside the settings that only root may read: a broken configuration does not name its secrets."""
    for name in host.files.names_if_any(SETTINGS_FOLDER):
        path = f"{SETTINGS_FOLDER}/{name}"
        with suppress(OSError):
            facts = host.files.lstat(path)
            if facts.kind is Kind.FILE and not facts.permissions & 0o077 and not name.endswith(SETTINGS_SUFFIXES):
                yield path


def read_secret(host: Host, path: str) -> str:
    """The content of a file with a secret; empty where there is none. Raises OSError, ValueError."""
    return host.files.text(path, 1 << 16) if host.files.exists(path) else ""
