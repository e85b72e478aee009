"""Reads a container of this machine's docker, as ContainerInspect of the Docker Engine API describes it."""

from collections.abc import Iterator, Mapping

from sparkd.base.lib.dockerd.reader import DockerReader
from sparkd.tools.importers.options import Launch, Option, port_text
from sparkd.tools.importers.source import as_mapping

_NAMES = {
    "Privileged": "privileged", "Memory": "memory", "Binds": "volume", "CapAdd": "cap-add", "CapDrop": "cap-drop",
    "SecurityOpt": "security-opt", "GroupAdd": "group-add", "PidMode": "pid", "ReadonlyRootfs": "read-only",
    "ExtraHosts": "add-host", "CpusetCpus": "cpuset-cpus",
}  # fmt: skip
"""The option of `docker run` behind a key of HostConfig."""


def read_container(docker: DockerReader, name: str) -> Launch | None:
    """None where docker has none of this name. Raises DockerError."""
    match docker.container(name):
        case {"Config": {"Image": str(image), **config}, "HostConfig": {**host_config}, "Image": str(image_id)}:
            description = docker.image(image_id)
        case _:
            return None
    image_config = as_mapping(as_mapping(description).get("Config"))
    launch = Launch(1, image, words=_list_texts(config.get("Cmd")), entrypoint=_list_texts(config.get("Entrypoint")))
    for text in _list_texts(config.get("Env")):
        variable, _, value = text.partition("=")
        if text not in _list_texts(image_config.get("Env")):
            launch.env[variable] = Option(variable, value, 1)
    launch.options = [Option(key, value, 1) for key, value in _list_options(host_config)]
    if (user := str(config.get("User") or "")) not in ("", image_config.get("User")):
        launch.options.append(Option("user", user, 1))
    if as_mapping(docker.image(image)).get("Id") != image_id:
        short = image_id.removeprefix("sha256:")[:12]
        launch.note(1, f"image: {image} is another image now than the container's {short}, which docker tag names")
    return launch


def _list_texts(value: object) -> list[str]:
    return [str(text) for text in value] if isinstance(value, list) else []


def _list_options(host_config: Mapping[object, object]) -> Iterator[tuple[str, str]]:
    """Options of `docker run` that lead to this HostConfig, without values that docker sets by itself."""
    if host_config.get("IpcMode") in ("host", "shareable"):
        yield "ipc", str(host_config["IpcMode"])
    elif host_config.get("ShmSize") not in (None, 64 << 20):
        yield "shm-size", str(host_config["ShmSize"])
    if host_config.get("NetworkMode") == "host":
        yield "network", "host"
    if host_config.get("DeviceRequests") or host_config.get("Runtime") == "nvidia":
        yield "gpus", "all"
    for key, name in _NAMES.items():
        value = host_config.get(key)
        texts = _list_texts(value) or ([str(value).lower()] if value else [])
        yield from ((name, text) for text in texts)
    for target, mount_options in as_mapping(host_config.get("Tmpfs")).items():
        yield "tmpfs", f"{target}:{mount_options}".rstrip(":")
    for key in ("Mounts", "Devices", "Ulimits"):
        entries = host_config.get(key)
        yield from filter(None, map(_convert_entry, entries if isinstance(entries, list) else ()))
    yield from _list_ports(host_config)


def _convert_entry(entry: object) -> tuple[str, str] | None:
    """The option for a mount, a device or a limit."""
    match entry:
        case {"Type": kind, "Source": source, "Target": target, **rest}:
            mode = ",readonly" if rest.get("ReadOnly") else ""
            return "mount", f"type={kind},source={source},target={target}{mode}"
        case {"PathOnHost": source, "PathInContainer": target}:
            return "device", f"{source}:{target}"
        case {"Name": name, "Soft": soft, "Hard": hard}:
            return "ulimit", f"{name}={soft}:{hard}"
    return None


def _list_ports(host_config: Mapping[object, object]) -> Iterator[tuple[str, str]]:
    for inner, bindings in as_mapping(host_config.get("PortBindings")).items():
        for binding in bindings if isinstance(bindings, list) else ():
            match binding:
                case {"HostPort": str(outer), **rest}:
                    yield "publish", port_text(str(rest.get("HostIp") or ""), outer, str(inner).removesuffix("/tcp"))
