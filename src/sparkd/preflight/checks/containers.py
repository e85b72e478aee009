"""Containers that conflict with the rank's: a foreign one of its name, and ones that docker starts by itself."""

from __future__ import annotations

from msgspec import Struct

from sparkd.host import Host
from sparkd.host.docker import LABEL
from sparkd.lib.text import sanitize
from sparkd.preflight.check import About, Check, Level, Problem, Verdict, verdict


class Seen(Struct, frozen=True):
    """A container with sparkd's label, or with the name that the rank's will have."""

    id: str
    name: str
    ours: bool
    """Whether sparkd made it: label and name say so."""
    running: bool
    restart_policy: str


class ContainersFacts(Struct, frozen=True):
    docker: str
    """"known", "away", or why a running docker did not answer."""
    containers: tuple[Seen, ...]


class StaleContainer(Check[ContainersFacts], frozen=True):
    """The name of the rank's container is free, and docker starts none of sparkd's by itself."""

    name: str
    """Of the container to come."""
    id = "stale-container"
    about = About(
        levels=(Level.WARN, Level.BLOCK, Level.UNKNOWN),
        reads="docker's containers: names, labels, restart policies",
        source="MiaAI-Lab/DeepSeek-V4-Flash-DSpark-2x issue 72 (docker had restored the ranks, and the start failed); "
        "eugr/spark-vllm-docker issue 257 (a policy of unless-stopped restarted some 35 times, each leaking memory)",
        page="""\
sparkd starts each rank in a new container named sparkd-rank0, sparkd-rank1 and so on, under docker's restart policy
`no`: restarting is systemd's job. A rank that docker restores at boot does not know the other ranks, holds the memory,
and comes back each time it is stopped.

  block    a container that sparkd did not make has the name of this node's rank: docker would refuse the new one. It is
           never removed. Rename it, or remove it if nobody needs it:

             docker rename sparkd-rank0 old-rank0      or      docker rm sparkd-rank0

  warn     a container with sparkd's label has a restart policy other than `no`: docker update --restart=no NAME
  unknown  docker runs, but can't list its containers.

A container that sparkd made and whose agent is gone is removed by stray-workers. Where docker is away, the launch waits
for docker and checks again.""",
    )

    def probe(self, host: Host) -> ContainersFacts:
        docker = host.docker()
        state = sanitize(docker.error) or ("known" if docker.running else "away")
        seen = (
            Seen(one.id, sanitize(one.name), one.ours, one.running, sanitize(one.restart_policy, 40))
            for one in docker.containers
            if one.label(f"{LABEL}role") or one.name == self.name
        )
        return ContainersFacts(state, tuple(seen))

    def judge(self, facts: ContainersFacts) -> Verdict:
        if facts.docker == "away":
            return Verdict(Level.OK, "docker is away, so containers were not checked")
        if facts.docker != "known":
            reason = f"docker can't list its containers: {facts.docker}"
            return Verdict(Level.UNKNOWN, reason, "look at: systemctl status docker", awaits="docker")
        problems = [_foreign(one) for one in facts.containers if one.name == self.name and not one.ours]
        problems += [_restarted(one) for one in facts.containers if one.restart_policy not in ("", "no")]
        return verdict(problems, f"the name {self.name} is free for a new container")


def _foreign(one: Seen) -> Problem:
    state = "running" if one.running else "stopped"
    reason = f"a container that sparkd did not make has the name {one.name} ({one.id[:12]}, {state})"
    return Problem(Level.BLOCK, reason, f"rename it: docker rename {one.name} old-{one.name}")


def _restarted(one: Seen) -> Problem:
    reason = f"docker restarts container {one.name} ({one.id[:12]}) by itself, beside systemd: {one.restart_policy}"
    return Problem(Level.WARN, reason, f"docker update --restart=no {one.name}")
