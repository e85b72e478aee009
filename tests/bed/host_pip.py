"""The configuration of pip on this machine, to be passed to pip elsewhere."""

import configparser
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
PERSONAL = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV", "PIP_CACHE_DIR")


@dataclass(frozen=True)
class HostPip:
    env: dict[str, str]
    paths: list[Path]  # files and folders that the environment or the configuration names


def look() -> HostPip:
    wanted = {*CERTIFICATES, *PROXIES, *(name.upper() for name in PROXIES)}
    env = {
        name: value
        for name, value in os.environ.items()
        if name in wanted or (name.startswith("PIP_") and name not in PERSONAL)
    }
    env["HOME"] = str(Path.home())
    files = [path for path in config_files() if path.is_file()]
    named = [path for value in [*env.values(), *config_values(files)] for path in named_paths(value)]
    return HostPip(env=env, paths=[*files, *(path for path in named if path != Path.home())])


def config_files() -> list[Path]:
    """Where pip looks, from its documentation; its own `pip config` may not be installed."""
    xdg = Path(os.environ.get("XDG_CONFIG_HOME", Path.home() / ".config"))
    files = [Path("/etc/pip.conf"), Path("/etc/xdg/pip/pip.conf"), Path.home() / ".pip/pip.conf", xdg / "pip/pip.conf"]
    chosen = os.environ.get("PIP_CONFIG_FILE", "")
    return [*files, Path(chosen)] if chosen and chosen != os.devnull else files


def config_values(files: list[Path]) -> Iterator[str]:
    for file in files:
        parser = configparser.RawConfigParser()
        parser.read(file)
        for section in parser.sections():
            yield from (value for _, value in parser.items(section))


def named_paths(value: str) -> Iterator[Path]:
    """Of an index in a folder its parent too: its pages link to files beside it."""
    for word in value.split():
        path = Path(word.removeprefix("file://"))
        if path.is_absolute() and path != Path("/") and path.exists():
            yield path.parent if word.startswith("file://") and len(path.parts) > 2 else path
