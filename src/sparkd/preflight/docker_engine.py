"""Docker: whether it answers, and whether it can give a container the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host import docker, docker_engine, gpu_ways
from sparkd.lib.dockerd.reader import DockerUnreadableError
from sparkd.lib.text import sanitize
from sparkd.preflight.check import About, Check, Level, Verdict

if TYPE_CHECKING:
    from sparkd.host import Host

UNIT = "docker.service"


class DockerEngineFacts(Struct, frozen=True):
    running: bool
    installed: bool
    """Whether there is a unit that starts it."""
    error: str = ""
    """Why a living docker could not be asked."""
    version: str = ""
    runtimes: tuple[str, ...] = ()
    gpu_ways: tuple[str, ...] = ()
    """How a container can be given the GPU."""


class Docker(Check[DockerEngineFacts], frozen=True):
    """A docker that answers, with a way to the GPU where the plan uses one."""

    uses_gpu: bool
    id: ClassVar[str] = "docker"
    about: ClassVar[About] = About(
        levels=(Level.WARN, Level.BLOCK, Level.UNKNOWN),
        reads="/run/docker.pid, /proc/net/unix; docker's version and runtimes; the hook's program; "
        "/etc/cdi, /var/run/cdi; the toolkit's config.toml",
        source="NVIDIA/dgx-spark-playbooks issue 26 (no runtime nvidia, and --gpus all works); "
        "eugr/spark-vllm-docker issue 129 (mode cdi); moby, daemon/cdi.go",
        page="""\
A rank is a container of dockerd's at /run/docker.sock. docker can give it the GPU in three ways. Any one is enough, and
the container asks by the first of these that is there:

  - nvidia-container-runtime-hook, which docker itself calls: --gpus all. DGX OS has been seen with it alone. In the
    toolkit's mode cdi (/etc/nvidia-container-runtime/config.toml) it refuses, and does not count
  - a specification of nvidia.com/gpu in a folder where docker looks for CDI, /etc/cdi or /var/run/cdi:
    --device nvidia.com/gpu=all. docker looks there from 28.3 on, and from 25 on where its feature cdi is set
  - the runtime `nvidia`, which `docker info` lists: --runtime nvidia

Nodes of one cluster may differ in it: it is no part of the plan's digest.

  ok       docker answers; a GPU plan has a way to the GPU, which is named.
  warn     docker is away. The launch waits for it in phase awaiting-docker, for as long as it takes, and starts neither
           docker nor its socket: whoever stopped docker may be in the middle of an upgrade. systemctl start docker
  block    the plan uses the GPU, and docker has no way to it. Install nvidia-container-toolkit, then

             nvidia-ctk runtime configure --runtime=docker && systemctl restart docker

  unknown  a dockerd lives and does not answer, or answers what is not its API. It is waited for. Look at:

             systemctl status docker; journalctl -u docker

That the way works can't be told without a container: this check reads, and starts nothing.""",
    )

    def probe(self, host: Host) -> DockerEngineFacts:
        installed = host.unit(UNIT) is not None
        try:
            found = docker.asked(host, docker_engine.read)
        except DockerUnreadableError as error:
            return DockerEngineFacts(True, installed, sanitize(str(error)))
        if found is None:
            return DockerEngineFacts(False, installed)
        ways = gpu_ways.read(host.files, found) if self.uses_gpu else ()
        return DockerEngineFacts(True, installed, "", found.version, found.runtimes, ways)

    def judge(self, facts: DockerEngineFacts) -> Verdict:
        if facts.error:
            reason = f"docker does not answer as it should: {facts.error}"
            return Verdict(Level.UNKNOWN, reason, "look at: systemctl status docker", awaits="docker")
        if not facts.running:
            hint = "systemctl start docker" if facts.installed else "install docker: there is no docker.service"
            return Verdict(Level.WARN, "docker is away: a launch waits for it", hint)
        said = f"docker {facts.version}"
        if not self.uses_gpu:
            return Verdict(Level.OK, f"{said}; the plan uses no GPU")
        if not facts.gpu_ways:
            reason = f"{said} has no way to the GPU: no runtime nvidia, no hook, no CDI specification"
            hint = "install nvidia-container-toolkit, then: nvidia-ctk runtime configure --runtime=docker"
            return Verdict(Level.BLOCK, reason, f"{hint} && systemctl restart docker")
        ways = ", ".join(facts.gpu_ways)
        return Verdict(Level.OK, f"{said}; to the GPU by {ways}")
