"""A container to be created, in docker's own terms. The SDK is not imported here."""

from __future__ import annotations

from msgspec import Struct


class BindMount(Struct, frozen=True):
    source: str
    target: str
    read_only: bool


class Limit(Struct, frozen=True):
    """A ulimit in its own unit; -1 is unlimited."""

    name: str
    soft: int
    hard: int


class GpuRequest(Struct, frozen=True):
    """An entry of HostConfig.DeviceRequests."""

    driver: str = ""
    count: int = 0
    """-1 is all."""
    device_ids: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


class ContainerSpec(Struct, frozen=True):
    """Options of `docker create`. The restart policy is docker's default, `no`."""

    image: str
    name: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    labels: dict[str, str]
    network_mode: str
    ipc_mode: str
    privileged: bool
    init: bool
    shm_bytes: int | None
    memory_bytes: int | None
    ulimits: tuple[Limit, ...]
    devices: tuple[str, ...]
    """Paths of the host, the same in the container, readable and writable."""
    gpus: tuple[GpuRequest, ...]
    runtime: str | None
    environment: dict[str, str]
    mounts: tuple[BindMount, ...]
    log_driver: str
    log_options: dict[str, str]
