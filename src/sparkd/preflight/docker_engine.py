"""Docker: whether it answers, and whether it can give a container the GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sparkd.host import docker, docker_engine
from sparkd.host.harmless import harmless
from sparkd.preflight.check import About, Check, Level, Verdict

if TYPE_CHECKING:
    from sparkd.host import Host

UNIT = "docker.service"
GPUS_BY_CDI = (29, 2)
"""The first Docker whose --gpus takes a CDI specification (moby pull request 50228). A version that is none is new."""


@dataclass(frozen=True)
class DockerEngineFacts:
    running: bool
    installed: bool
    """Whether there is a unit that starts it."""
    error: str = ""
    """Why a living docker could not be asked."""
    version: str = ""
    runtimes: tuple[str, ...] = ()
    gpu_ways: tuple[str, ...] = ()
    """How a container can be given the GPU."""


@dataclass(frozen=True)
class Docker(Check[DockerEngineFacts]):
    """A docker that answers, with a way to the GPU where the plan uses one."""

    uses_gpu: bool
    id: str = "docker"
    about: ClassVar[About] = About(
        levels=(Level.WARN, Level.BLOCK, Level.UNKNOWN),
        reads="/run/docker.pid, /proc/net/unix; docker's version and runtimes; the hook's program; "
        "/etc/cdi, /var/run/cdi",
        source="NVIDIA/dgx-spark-playbooks issue 26 (no runtime nvidia, and --gpus all works); "
        "eugr/spark-vllm-docker issue 129 (CDI); moby pull request 50228",
        page="""\
A rank is a container of dockerd's at /run/docker.sock, made as `docker run --gpus all` makes one. docker can give it
the GPU in three ways, and where any one is there nothing is blocked:

  - the runtime `nvidia`, which `docker info` lists
  - nvidia-container-runtime-hook, which docker itself calls for --gpus. DGX OS has been seen with it alone
  - a specification of nvidia.com/gpu in a folder where docker looks for CDI: /etc/cdi or /var/run/cdi

Where none is there, docker refuses the container: could not select device driver "" with capabilities: [[gpu]].

  ok       docker answers; a GPU plan has a way to the GPU, which is named.
  warn     docker is away. The launch waits for it in phase awaiting-docker, for as long as it takes, and starts neither
           docker nor its socket: whoever stopped docker may be in the middle of an upgrade. systemctl start docker
         Or the hook was not seen, and --gpus may need it: docker takes a specification for it from 29.2 on, and the
         runtime never.
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
        except docker.DockerUnreadableError as error:
            return DockerEngineFacts(True, installed, harmless(str(error)))
        if found is None:
            return DockerEngineFacts(False, installed)
        ways = docker_engine.gpu_ways(host.files, found) if self.uses_gpu else ()
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
        if not _by_gpus(facts):
            reason = (
                f"{said} may refuse --gpus: it has a way to the GPU by {ways}, and no {docker_engine.HOOK} was seen"
            )
            return Verdict(Level.WARN, reason, "install nvidia-container-toolkit, then: systemctl restart docker")
        return Verdict(Level.OK, f"{said}; to the GPU by {ways}")


def _by_gpus(facts: DockerEngineFacts) -> bool:
    """Whether --gpus works, as far as can be told: a hook may lie where only dockerd looks."""
    if any(way.endswith(docker_engine.HOOK) for way in facts.gpu_ways):
        return True
    return any(way != docker_engine.RUNTIME for way in facts.gpu_ways) and _numbers(facts.version) >= GPUS_BY_CDI


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d{1,6})\.(\d{1,6})", version)
    return (int(found[1]), int(found[2])) if found else GPUS_BY_CDI
