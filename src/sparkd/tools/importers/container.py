"""Reads a container of this machine's docker, by what docker says of it (Docker Engine API, ContainerInspect)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparkd.base.lib.dockerd.reader import DockerReader
from sparkd.tools.importers.options import Launch, Option
from sparkd.tools.importers.source import as_mapping

_NAMES = {
    "Privileged": "privileged", "Memory": "memory", "Binds": "volume", "CapAdd": "cap-add", "CapDrop": "cap-drop",
    "SecurityOpt": "security-opt", "GroupAdd": "group-add", "PidMode": "pid", "ReadonlyRootfs": "read-only",
    "ExtraHosts": "add-host", "CpusetCpus": "cpuset-cpus",
}  # fmt: skip
"""The option of `docker run` behind a key of HostConfig."""


def read_container(docker: DockerReader, name: str) -> Launch | None:
    """None where docker has none of this name. Raises DockerError."""
    found = docker.container(name)
    match found:
        case {"Config": {"Image": str(image), **config}, "HostConfig": {**host}, "Image": str(image_id)}:
            own = docker.image(image_id)
        case _:
            return None
    default = as_mapping(as_mapping(own).get("Config"))
    launch = Launch(1, image, words=_texts(config.get("Cmd")), entrypoint=_texts(config.get("Entrypoint")))
    for text in _texts(config.get("Env")):
        variable, _, value = text.partition("=")
        if text not in _texts(default.get("Env")):
            launch.env[variable] = Option(variable, value, 1)
    launch.options = [Option(key, value, 1) for key, value in _options(host)]
    if (user := str(config.get("User") or "")) not in ("", default.get("User")):
        launch.options.append(Option("user", user, 1))
    if as_mapping(docker.image(image)).get("Id") != image_id:
        short = image_id.removeprefix("sha256:")[:12]
        launch.note(1, f"image: {image} is another image now than the container's {short}, which docker tag names")
    return launch


def _texts(value: object) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []


def _options(host: Mapping[object, object]) -> Iterator[tuple[str, str]]:
    """As `docker run` has them; what docker adds by itself is left out."""
    if host.get("IpcMode") in ("host", "shareable"):
        yield "ipc", str(host["IpcMode"])
    elif host.get("ShmSize") not in (None, 64 << 20):
        yield "shm-size", str(host["ShmSize"])
    if host.get("NetworkMode") == "host":
        yield "network", "host"
    if host.get("DeviceRequests") or host.get("Runtime") == "nvidia":
        yield "gpus", "all"
    for key, name in _NAMES.items():
        value = host.get(key)
        given = _texts(value) or [str(value).lower()] * bool(value)
        yield from ((name, text) for text in given)
    yield from (("tmpfs", f"{target}:{how}".rstrip(":")) for target, how in as_mapping(host.get("Tmpfs")).items())
    for key in ("Mounts", "Devices", "Ulimits"):
        listed = host.get(key)
        yield from filter(None, map(_entry, listed if isinstance(listed, list) else ()))
    yield from _ports(host)


def _entry(entry: object) -> tuple[str, str] | None:
    match entry:
        case {"Type": kind, "Source": source, "Target": target, **rest}:
            return "mount", f"type={kind},source={source},target={target}" + ",readonly" * bool(rest.get("ReadOnly"))
        case {"PathOnHost": source, "PathInContainer": target}:
            return "device", f"{source}:{target}"
        case {"Name": name, "Soft": soft, "Hard": hard}:
            return "ulimit", f"{name}={soft}:{hard}"
    return None


def _ports(host: Mapping[object, object]) -> Iterator[tuple[str, str]]:
    for inner, bindings in as_mapping(host.get("PortBindings")).items():
        match bindings:
            case [{"HostPort": outer, **rest}, *_]:
                address = str(rest.get("HostIp") or "")
                yield "publish", (f"{address}:" if address else "") + f"{outer}:{str(inner).removesuffix('/tcp')}"
