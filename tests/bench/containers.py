"""What docker says of a container, and the `docker run` that makes the same one without sparkd. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Inspected:
    """Of `docker inspect`: its stamps in seconds since 1970, and the `docker run` of its like."""

    created: float
    """Time of the request to dockerd."""
    started: float
    """It ran."""
    argv: tuple[str, ...]


def parse(text: str, name: str) -> Inspected:
    """The container as it is; its like would be named `name`."""
    (found,) = json.loads(text)
    return Inspected(
        datetime.fromisoformat(found["Created"]).timestamp(),
        datetime.fromisoformat(found["State"]["StartedAt"]).timestamp(),
        ("docker", "run", "--detach", "--name", name, *_options(found["Config"], found["HostConfig"])),
    )


def _options(config: Mapping[str, object], host: Mapping[str, object]) -> list[str]:
    match config, host:
        case (
            {"Entrypoint": [str(entrypoint)], "Cmd": [*command], "Image": str(image)},
            {"NetworkMode": str(network), "IpcMode": str(ipc), "Mounts": [*mounts], "LogConfig": dict(log)},
        ):
            options = ["--network", network, "--ipc", ipc, "--entrypoint", entrypoint]
            options += ["--init"] if host.get("Init") else []
            options += ["--privileged"] if host.get("Privileged") else []
            options += [word for mount in mounts if isinstance(mount, dict) for word in ("--mount", _mount(mount))]
            options += ["--log-driver", log["Type"]]
            options += [word for key, value in log["Config"].items() for word in ("--log-opt", f"{key}={value}")]
            return [*options, image, *map(str, command)]
    raise ValueError("not the container of a rank, as docker inspect shows it")


def _mount(mount: Mapping[str, object]) -> str:
    words = [f"type={mount['Type']}", f"source={mount['Source']}", f"target={mount['Target']}"]
    return ",".join([*words, "readonly"] if mount.get("ReadOnly") else words)
