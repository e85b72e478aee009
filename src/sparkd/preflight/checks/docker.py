"""Docker: whether it answers, and whether it can give a container the GPU."""

from __future__ import annotations

from msgspec import Struct

from sparkd.host import Host, docker, docker_config
from sparkd.lib.dockerd.reader import DockerError
from sparkd.lib.text import sanitize
from sparkd.preflight.check import About, Check, Level, Verdict

UNIT = "docker.service"


class DockerEngineFacts(Struct, frozen=True):
    running: bool
    installed: bool
    """Whether there is a unit that starts it."""
    error: str = ""
    """Why a running docker did not answer."""
    version: str = ""
    runtimes: tuple[str, ...] = ()
    gpu_ways: tuple[str, ...] = ()
    """How a container can be given the GPU."""


class Docker(Check[DockerEngineFacts], frozen=True):
    """A docker that answers, with a way to the GPU where the plan uses one."""

    uses_gpu: bool
    id = "docker"
    about = About(
        levels=(Level.WARN, Level.BLOCK, Level.UNKNOWN),
        reads="/run/docker.pid, /proc/net/unix; docker's version and runtimes; the hook's program; "
        "/etc/cdi, /var/run/cdi; the toolkit's config.toml",
        source="NVIDIA/dgx-spark-playbooks issue 26 (no runtime nvidia, and --gpus all works); "
        "eugr/spark-vllm-docker issue 129 (mode cdi); moby, daemon/cdi.go",
        page="""\
docker can give a container the GPU in three ways. Any one is enough, and the container uses the first that is there:

  - nvidia-container-runtime-hook, which docker itself calls: --gpus all. In the toolkit's mode cdi
    (/etc/nvidia-container-runtime/config.toml) it refuses, and does not count
  - a specification of nvidia.com/gpu in /etc/cdi or /var/run/cdi: --device nvidia.com/gpu=all. docker reads it from
    28.3 on, and from 25 on where its feature cdi is set
  - the runtime `nvidia`, which `docker info` lists: --runtime nvidia

Nodes of one cluster may differ in it. Only a container shows whether it works: this check starts nothing.

  warn     docker is away. The launch waits for it in phase awaiting-docker without a time limit, and starts neither
           docker nor its socket: an upgrade may be under way. systemctl start docker
  block    the plan uses the GPU, and docker has no way to it. Install nvidia-container-toolkit, then

             nvidia-ctk runtime configure --runtime=docker && systemctl restart docker

  unknown  dockerd runs, but does not answer, or answers something other than its API. sparkd waits for it. See:
           systemctl status docker; journalctl -u docker""",
    )

    def probe(self, host: Host) -> DockerEngineFacts:
        installed = host.unit(UNIT) is not None
        try:
            found = docker.query(host, docker_config.read_engine)
        except DockerError as error:
            return DockerEngineFacts(True, installed, sanitize(str(error)))
        if found is None:
            return DockerEngineFacts(False, installed)
        ways = docker_config.find_gpu_access(host.files, found) if self.uses_gpu else ()
        return DockerEngineFacts(True, installed, "", found.version, found.runtimes, ways)

    def judge(self, facts: DockerEngineFacts) -> Verdict:
        if facts.error:
            reason = f"docker does not answer as it should: {facts.error}"
            return Verdict(Level.UNKNOWN, reason, "look at: systemctl status docker", awaits="docker")
        if not facts.running:
            hint = "systemctl start docker" if facts.installed else "install docker: there is no docker.service"
            return Verdict(Level.WARN, "docker is away: a launch waits for it", hint)
        version = f"docker {facts.version}"
        if not self.uses_gpu:
            return Verdict(Level.OK, f"{version}; the plan uses no GPU")
        if not facts.gpu_ways:
            reason = f"{version} has no way to the GPU: no runtime nvidia, no hook, no CDI specification"
            hint = "install nvidia-container-toolkit, then: nvidia-ctk runtime configure --runtime=docker"
            return Verdict(Level.BLOCK, reason, f"{hint} && systemctl restart docker")
        ways = ", ".join(facts.gpu_ways)
        return Verdict(Level.OK, f"{version}; to the GPU by {ways}")
