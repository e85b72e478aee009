"""Docker: whether it answers, and can give a container the GPU; the engine's image; containers in the rank's way."""

from collections.abc import Iterator
from contextlib import suppress
from shlex import quote

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.preflight.check import Check, Level, Verdict, block, combine_verdicts, ok, skipped, unknown, warn
from sparkd.base.host import Host, docker, docker_config, docker_image, gpu_access
from sparkd.base.host.docker import LABEL
from sparkd.base.host.docker_image import Image
from sparkd.base.lib.dockerd.reader import FORBIDDEN, DockerError, DockerReader
from sparkd.base.lib.errors import UsageError
from sparkd.base.lib.text import sanitize, size
from sparkd.base.plan.image_asserts import render_asserts
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.state import known_good, launch_history
from sparkd.base.state.launch_history import AssertResult

DOCKER_UNIT = "docker.service"


def docker_unknown(reason: str) -> Verdict:
    """The verdict for a docker that runs, and does not answer as it should."""
    hint = "sudo sparkd preflight --dry-run" if FORBIDDEN in reason else "look at: systemctl status docker"
    return unknown(reason, hint, awaits="docker to answer")


class DockerEngineFacts(Struct, frozen=True):
    running: bool
    installed: bool
    """Whether there is a unit that starts it."""
    error: str = ""
    version: str = ""
    runtimes: tuple[str, ...] = ()
    gpu_ways: tuple[str, ...] = ()
    may_keep: bool = False
    """Whether live-restore would keep containers at a restart, and is off: as in `gpu_access.DockerEngine`."""
    other_pid_file: str = ""
    """The pid file of a dockerd that sparkd can't find, as in `docker_config.find_other_pid_file`."""


class Docker(Check[DockerEngineFacts], frozen=True):
    uses_gpu: bool
    id = "docker"
    levels = (Level.WARN, Level.BLOCK, Level.UNKNOWN)

    def probe(self, host: Host) -> DockerEngineFacts:
        installed = host.unit(DOCKER_UNIT) is not None
        try:
            engine = docker.query(host, gpu_access.read_engine)
        except DockerError as error:
            return DockerEngineFacts(True, installed, sanitize(str(error)))
        if engine is None:
            other_pid_file = docker_config.find_other_pid_file(host)
            return DockerEngineFacts(False, installed, other_pid_file=other_pid_file)
        return DockerEngineFacts(
            running=True,
            installed=installed,
            version=engine.version,
            runtimes=engine.runtimes,
            gpu_ways=gpu_access.find_ways(host.files, engine) if self.uses_gpu else (),
            may_keep=engine.may_keep,
        )

    def judge(self, facts: DockerEngineFacts) -> Verdict:
        if facts.error:
            return docker_unknown(f"docker does not answer as it should: {facts.error}")
        if facts.other_pid_file:
            return warn(*docker_config.describe_other_pid_file(facts.other_pid_file))
        if not facts.running:
            hint = "sudo systemctl start docker" if facts.installed else "install docker: there is no docker.service"
            return warn("docker is away: a launch waits for it", hint)
        version, restart_note, remedy = f"docker {facts.version}", "", ""
        if facts.may_keep:
            restart_note = "; its restart ends the engine: live-restore is off"
            remedy = "sudo sparkd init --plan   # shows how to turn it on"
        if not self.uses_gpu:
            return ok(f"{version}; the plan uses no GPU{restart_note}", remedy)
        if not facts.gpu_ways:
            reason = f"{version} has no way to the GPU: no runtime nvidia, no hook, no CDI specification"
            hint = "sudo apt install nvidia-container-toolkit && sudo nvidia-ctk runtime configure --runtime=docker"
            return block(reason, f"{hint} && sudo systemctl restart docker")
        return ok(f"{version}; to the GPU by {', '.join(facts.gpu_ways)}{restart_note}", remedy)


class ImageFacts(Struct, frozen=True):
    ref: str
    asserts: tuple[str, ...]
    docker: str
    """"known", "away", or why a running docker did not answer."""
    machine: str = ""
    """The machine's architecture; empty where unknown."""
    image: Image | None = None
    checked: AssertResult | None = None
    """The result of the asserts; None where they were not checked yet."""
    served: str = ""
    """Beginning of a missing image's hint: how to get back the one that served by this name or id; empty for none."""


class EngineImage(Check[ImageFacts], frozen=True):
    plan: LaunchPlan
    id = "image"
    levels = (Level.WARN, Level.BLOCK, Level.UNKNOWN)

    def probe(self, host: Host) -> ImageFacts:
        ref, asserts = self.plan.image_to_run, tuple(map(str, self.plan.asserts))

        def read_facts(reader: DockerReader) -> ImageFacts:
            machine, image = docker_image.read_architecture(reader), docker_image.read_image(reader, ref)
            # NAME@sha256:... names one image alone, and no other can be tagged by that name.
            served = "" if image or "@" in ref else _describe_return(host, reader, ref)
            return ImageFacts(ref, asserts, "known", machine, image, served=served)

        try:
            facts = docker.query(host, read_facts) or ImageFacts(ref, asserts, "away")
        except DockerError as error:
            return ImageFacts(ref, asserts, sanitize(str(error)))
        if facts.image is None or not asserts:
            return facts
        launches = launch_history.read_history(host.files)
        return replace(facts, checked=launches.assert_result(facts.image.id, render_asserts(self.plan.asserts)))

    def judge(self, facts: ImageFacts) -> Verdict:
        image, build = facts.image, self.plan.image_build
        if facts.docker == "away":
            return skipped("docker is away, so the image was not checked")
        if facts.docker != "known":
            return docker_unknown(f"docker can't describe the image: {facts.docker}")
        if image is None:
            hint = facts.served + docker_image.how_to_get(facts.ref, build)
            return block(f"image {facts.ref} is not on this node", hint)
        if facts.machine and image.architecture and image.architecture != facts.machine:
            reason = f"image {facts.ref} is for {image.architecture}, and this machine is {facts.machine}"
            command = f"sudo docker pull --platform linux/{facts.machine} {facts.ref}"
            return block(reason, command if "/" in facts.ref else docker_image.how_to_get(facts.ref, build))
        if facts.checked and facts.checked.fault:
            reason = f"image {facts.ref} is not what the recipe needs: {facts.checked.fault}"
            return block(reason, build or "build it with what is missing, or choose another: engine.image")
        if facts.asserts and not facts.checked:
            reason = f"image {facts.ref}: what the recipe asserts of it is not checked yet"
            return warn(reason, "nothing is to be done: the next start does")
        return ok(f"{facts.ref}: {_describe_image(image)}")


def _describe_return(host: Host, reader: DockerReader, ref: str) -> str:
    """Beginning of a hint: how to get back the image that served by this name or id; empty where none did."""
    starts: tuple[known_good.Entry, ...] = ()
    with suppress(UsageError, OSError):  # users other than root may not read the file
        starts = known_good.read_known_good(host.files)
    served = next((start for start in starts if start.image_id and ref in (start.image, start.image_id)), None)
    if served is None:
        return ""
    digest, is_name = served.image_digest, ref != served.image_id
    if is_name and docker_image.read_image(reader, served.image_id):
        command = f"sudo docker tag {served.image_id} {ref}"
    elif digest:
        tag_command = f" && sudo docker tag {digest} {ref}" if is_name else ""
        command = f"sudo docker pull {digest}{tag_command}"
    else:
        return ""
    return f"the one that served: {command}; or another: "


def _describe_image(image: Image) -> str:
    labels = dict(image.labels)
    built = f"built {image.created[:10]}" if image.created else ""
    version, revision = (labels.get(f"org.opencontainers.image.{key}", "") for key in ("version", "revision"))
    parts = (image.id.removeprefix("sha256:")[:12], size(image.size_bytes), built, version, revision[:12])
    return ", ".join(filter(None, parts))


class CheckedContainer(Struct, frozen=True):
    """A container with sparkd's label, or with the name that the rank's will have."""

    id: str
    name: str
    ours: bool
    running: bool
    restart_policy: str


class ContainersFacts(Struct, frozen=True):
    docker: str
    """The same as `ImageFacts.docker`."""
    containers: tuple[CheckedContainer, ...]


class StaleContainer(Check[ContainersFacts], frozen=True):
    plan: LaunchPlan
    id = "stale-container"
    levels = (Level.WARN, Level.BLOCK, Level.UNKNOWN)

    def probe(self, host: Host) -> ContainersFacts:
        daemon = host.docker()
        state = sanitize(daemon.error) or ("known" if daemon.running else "away")
        containers = (
            CheckedContainer(
                container.id,
                sanitize(container.name),
                container.ours,
                container.running,
                sanitize(container.restart_policy, 40),
            )
            for container in daemon.containers
            if container.label(f"{LABEL}role") or container.name == self.plan.container_name
        )
        return ContainersFacts(state, tuple(containers))

    def judge(self, facts: ContainersFacts) -> Verdict:
        if facts.docker == "away":
            return skipped("docker is away, so containers were not checked")
        if facts.docker != "known":
            return docker_unknown(f"docker can't list its containers: {facts.docker}")
        good = f"the name {self.plan.container_name} is free for a new container"
        return combine_verdicts(self._find_problems(facts), good)

    def _find_problems(self, facts: ContainersFacts) -> Iterator[Verdict]:
        for container in facts.containers:
            if container.name == self.plan.container_name and not container.ours:
                details = f"{container.id[:12]}, {'running' if container.running else 'stopped'}"
                reason = f"a container that sparkd did not make has the name {container.name} ({details})"
                yield block(reason, f"rename it: sudo docker rename {container.name} old-{container.id[:12]}")
            if container.restart_policy not in ("", "no"):
                reason = f"docker restarts container {container.name} ({container.id[:12]}) by itself, beside systemd: "
                reason += container.restart_policy
                yield warn(reason, f"sudo docker update --restart=no {quote(container.name)}")
