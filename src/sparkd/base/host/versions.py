"""Versions that should be the same on all nodes, and facts of this boot: command line, memory, swap, settings."""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from sparkd import __version__
from sparkd.base.host import Host, docker, kernel, meminfo
from sparkd.base.lib.dockerd.reader import DockerError
from sparkd.base.lib.text import sanitize, size

LIMIT = 100


def read_versions(host: Host) -> Mapping[str, str]:
    """Versions by name; unknown ones are left out. It may wait for docker, at most ten seconds."""
    versions = dict(read_local_versions(host))
    with suppress(DockerError):
        if host.live and (version := (docker.query(host, docker.read_version) or "").strip()):
            versions["docker"] = sanitize(version, LIMIT)
    return versions


def read_local_versions(host: Host) -> Mapping[str, str]:
    """Versions of sparkd, driver and kernel by name; unknown ones are left out."""
    versions = {"sparkd": __version__, "driver": _driver(host), "kernel": kernel.read_release(host.files)}
    return {name: sanitize(text, LIMIT) for name, text in versions.items() if text}


def read_boot(host: Host, sysctls: Iterable[str]) -> Mapping[str, str]:
    """Facts by name; unknown ones are left out. `sysctls`: names of settings to include."""
    facts: dict[str, str] = {}
    # Paths with the kernel's version are left out: that is a fact of its own.
    words = kernel.read_command_line(host.files)
    if words := tuple(word for word in words if not word.startswith(("BOOT_IMAGE=", "initrd="))):
        facts["boot.command_line"] = " ".join(words)
    with suppress(OSError, ValueError):
        facts["boot.memory"] = size(host.meminfo().total_bytes)
    with suppress(OSError, ValueError):
        areas = meminfo.read_swaps(host.files)
        facts["boot.swap"] = ", ".join(f"{area.path} {size(area.bytes)}" for area in areas) or "off"
    for name in sysctls:
        with suppress(OSError):
            if (value := kernel.read_sysctl(host.files, name)) is not None:
                facts[f"sysctl.{name}"] = value
    return {name: sanitize(text, 2000) for name, text in facts.items()}


def _driver(host: Host) -> str:
    with suppress(OSError):
        module = kernel.read_nvidia_module(host.files)
        return module.version if module and module.version[0].isdigit() else ""
    return ""
