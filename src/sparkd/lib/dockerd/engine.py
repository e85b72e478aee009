"""The acting face of dockerd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from sparkd.lib.dockerd.client import MALFORMED, UNANSWERED, SdkClient, inspect_image, reason
from sparkd.lib.dockerd.reader import SOCKET, DockerConflictError, DockerError, DockerMissingError
from sparkd.lib.dockerd.sdk import APIClient, APIError, DeviceRequest, LogConfig, Mount, Ulimit
from sparkd.lib.dockerd.spec import ContainerSpec
from sparkd.lib.dockerd.transport import SocketTransport

T = TypeVar("T")

TIMEOUT_SECONDS = 120.0
"""For dockerd's answer to create and start: a first start after boot on a loaded machine takes tens of seconds."""
CHUNK_BYTES = 4 << 20

_KINDS = {404: DockerMissingError, 409: DockerConflictError}


class DockerEngine:
    """For one thread at a time. Every method raises DockerError. It connects at the first call."""

    def __init__(self, socket_path: str = SOCKET) -> None:
        self._client = SdkClient(SocketTransport(socket_path))

    def image_id(self, ref: str) -> str:
        """The full id. Raises DockerMissingError."""
        return str(self._act(lambda api: inspect_image(api, ref)["Id"]))

    def create(self, spec: ContainerSpec) -> str:
        """The id of the new container, which is not started."""
        return str(self._act(lambda api: _create(api, spec)["Id"]))

    def start(self, container_id: str) -> None:
        self._act(lambda api: api.start(container_id))

    def pid(self, container_id: str) -> int:
        """Of the container's init, in the host's namespace; 0 where it does not run."""
        return self._act(lambda api: int(api.inspect_container(container_id)["State"]["Pid"]))

    def log_tail(self, container_id: str, lines: int) -> bytes:
        """The last lines that an ended container wrote, both streams."""
        return self._act(lambda api: api.logs(container_id, tail=lines))

    def stop(self, container_id: str, grace_seconds: int) -> None:
        """SIGTERM, grace, SIGKILL; gone is fine."""
        with suppress(DockerMissingError):
            self._act(lambda api: api.stop(container_id, timeout=grace_seconds), TIMEOUT_SECONDS + grace_seconds)

    def remove(self, container_id: str) -> None:
        """Remove it, killed if it still runs; gone is fine, and so is another removal under way."""
        with suppress(DockerMissingError, DockerConflictError):
            self._act(lambda api: api.remove_container(container_id, force=True))

    def save_image(self, ref: str) -> Iterator[bytes]:
        """The archive that `docker load` reads, in pieces."""
        self.image_id(ref)  # settles the API version, which a stream can't, and that it is there
        try:
            yield from self._client.call(lambda api: api.get_image(ref, chunk_size=CHUNK_BYTES), None)
        except (*UNANSWERED, *MALFORMED) as error:
            raise DockerError(reason(error)) from None

    def _act(self, work: Callable[[APIClient], T], seconds: float = TIMEOUT_SECONDS) -> T:
        try:
            return self._client.call(work, seconds)
        except APIError as error:
            raise _KINDS.get(error.status_code or 0, DockerError)(reason(error)) from None
        except (*UNANSWERED, *MALFORMED) as error:
            raise DockerError(reason(error, seconds)) from None


def _create(api: APIClient, spec: ContainerSpec) -> dict[str, object]:
    created: dict[str, object] = api.create_container(
        spec.image,
        command=list(spec.command),
        entrypoint=list(spec.entrypoint),
        name=spec.name,
        labels=spec.labels,
        environment=spec.environment or None,
        host_config=api.create_host_config(
            network_mode=spec.network_mode,
            ipc_mode=spec.ipc_mode,
            privileged=spec.privileged,
            init=spec.init,
            shm_size=spec.shm_bytes,
            mem_limit=spec.memory_bytes,
            ulimits=[Ulimit(name=one.name, soft=one.soft, hard=one.hard) for one in spec.ulimits],
            devices=[f"{path}:{path}:rwm" for path in spec.devices],
            device_requests=[
                DeviceRequest(
                    driver=one.driver,
                    count=one.count,
                    device_ids=list(one.device_ids),
                    capabilities=[list(one.capabilities)] if one.capabilities else [],
                )
                for one in spec.gpus
            ],
            runtime=spec.runtime,
            # A mount, unlike a volume, fails on a missing source instead of making an empty folder as root.
            mounts=[Mount(one.target, one.source, type="bind", read_only=one.read_only) for one in spec.mounts],
            log_config=LogConfig(type=spec.log_driver, config=spec.log_options),
        ),
        # Proxies of root's docker configuration would be in the container and not in the plan.
        use_config_proxy=False,
        detach=True,
    )
    return created
