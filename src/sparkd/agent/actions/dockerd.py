"""Starts, stops and removes containers through dockerd. `base.host.docker` only reads."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from sparkd.agent.actions.compile_caches import remove_cut_kernels
from sparkd.agent.actions.container_bodies import create_body
from sparkd.agent.actions.rank_process import Rank
from sparkd.base.host.docker_image import how_to_get
from sparkd.base.host.files import Files
from sparkd.base.host.gpu_access import GpuAccess
from sparkd.base.host.processes import read_process
from sparkd.base.lib.dockerd.client import SdkClient
from sparkd.base.lib.dockerd.reader import CONFLICT, MISSING, SOCKET, DockerError
from sparkd.base.lib.errors import Cause, LaunchError
from sparkd.base.lib.text import sanitize
from sparkd.base.plan.model import LaunchPlan

TIMEOUT_SECONDS = 120.0
"""Limit for dockerd to create and start: a first start after boot on a loaded machine takes tens of seconds."""
LAST_LINES = 200


class Containers:
    """dockerd, for one thread at a time. It connects at the first call, and every method raises LaunchError."""

    def __init__(self, socket_path: str = SOCKET) -> None:
        self._call = SdkClient(socket_path, TIMEOUT_SECONDS).call

    def start(self, plan: LaunchPlan, script: Path, labels: dict[str, str], gpu: GpuAccess | None) -> Rank:
        """Remove cut kernels from the caches, create the rank's container and start it."""
        image_id = self._find_image_id(plan)
        name = plan.container_name
        removed_kernels = sum(remove_cut_kernels(image_id, cache.name) for cache in plan.caches)
        body = create_body(plan, image_id, script, labels, gpu)
        container_id = self._create(body, name)
        with self._remove_on_error(container_id):
            with _as_launch_error(f"container {name} can't be started"):
                self._call(lambda api: api.start(container_id))
                rank = self._open_rank(container_id, name, image_id, removed_kernels)
            if rank is None:
                raise LaunchError(
                    f"container {name} ended as soon as it was started{self._read_first_line(container_id)}"
                )
        return rank

    def run_program(self, body: Mapping[str, object], name: str, seconds: int) -> tuple[int, str]:
        """Run a container to its end and remove it. Returns its exit code and its log."""
        container_id = self._create(body, name)
        with self._remove_on_error(container_id), _as_launch_error(f"container {name} can't be run to its end"):
            self._call(lambda api: api.start(container_id))
            exit_status = self._call(lambda api: api.wait(container_id, timeout=seconds), seconds)
            log = self._call(lambda api: api.logs(container_id, tail=LAST_LINES))
        self.remove(container_id)
        return int(exit_status["StatusCode"]), log.decode("utf-8", "replace")

    @contextmanager
    def _remove_on_error(self, container_id: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with suppress(LaunchError):  # the next preflight, or check of a build, removes it
                self.remove(container_id)
            raise

    def _create(self, body: Mapping[str, object], name: str) -> str:
        with _as_launch_error(f"container {name} can't be made"):
            return self._call(lambda api: str(api.create_container_from_config(body, name)["Id"]))

    def _find_image_id(self, plan: LaunchPlan) -> str:
        """Full id of a local image. sparkd pulls nothing at a start: an image that changes by itself is drift."""
        ref = plan.image_to_run
        try:
            return self._call(lambda api: str(api.inspect_image(ref)["Id"]))
        except DockerError as error:
            if error.status == MISSING:
                reason = f"image {ref} is not on this node"
                raise LaunchError(reason, how_to_get(ref, plan.image_build), cause=Cause.IMAGE_MISSING) from None
            raise LaunchError(f"image {ref} can't be looked up: {error}", "look at: systemctl status docker") from None

    def _open_rank(self, container_id: str, name: str, image_id: str, removed_kernels: int) -> Rank | None:
        """The rank, with a pidfd of the container's init; None where that has ended already."""
        pid, _ = self._read_state(container_id)
        if pid > 1:
            with suppress(ProcessLookupError), ExitStack() as cleanup:
                pidfd = os.pidfd_open(pid)
                cleanup.callback(os.close, pidfd)
                process = read_process(Files(), pid)
                # Read again with the pidfd open: if the pid is still the container's, so is the pidfd, for good.
                pid_again, started_at = self._read_state(container_id)
                if pid_again == pid:
                    cleanup.pop_all()
                    start = process.start_time if process is not None else 0, started_at
                    return Rank(container_id, name, image_id, pid, pidfd, *start, removed_kernels)
        return None

    def _read_state(self, container_id: str) -> tuple[int, str]:
        """The pid of its init in the host's namespace, 0 where that has ended; and when it was started."""
        state = self._call(lambda api: api.inspect_container(container_id)["State"])
        return int(state["Pid"]), str(state.get("StartedAt", ""))

    def _read_first_line(self, container_id: str) -> str:
        """The first of the last LAST_LINES lines of its log, after `: `; empty where it logged nothing."""
        try:
            log = self._call(lambda api: api.logs(container_id, tail=LAST_LINES))
        except DockerError:
            return ""
        lines = log.decode("utf-8", "replace").splitlines()
        return f": {sanitize(lines[0], 300)}" if lines else ""

    def stop(self, container_id: str, grace_seconds: int) -> None:
        """Stop it by SIGTERM, grace, SIGKILL. One that is gone is no error."""
        with _as_launch_error(f"container {container_id[:12]} can't be stopped", MISSING):
            self._call(lambda api: api.stop(container_id, timeout=grace_seconds), TIMEOUT_SECONDS + grace_seconds)

    def remove(self, container_id: str) -> None:
        """Remove it, running or not. One that is gone, or that another call is removing, is no error.

        The volumes that docker makes of an image's VOLUME, a copy of its files for each container, go with it.
        """
        with _as_launch_error(f"container {container_id[:12]} can't be removed", MISSING, CONFLICT):
            self._call(lambda api: api.remove_container(container_id, v=True, force=True))


@contextmanager
def _as_launch_error(what: str, *harmless: int) -> Iterator[None]:
    """Raise LaunchError in place of DockerError. `harmless`: HTTP statuses that are no error."""
    try:
        yield
    except DockerError as error:
        if error.status not in harmless:
            raise LaunchError(f"{what}: {error}", "see why: sudo journalctl -u docker -e") from None
