"""Segments that systemd-logind would take away from a running engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host import docker_image, logind, users
from sparkd.preflight.check import About, Check, Level, Verdict

if TYPE_CHECKING:
    from sparkd.host import Host

FIRST_PERSON = 1000
"""Users below are the system's own, whose segments logind leaves alone."""


class RemoveIpcFacts(Struct, frozen=True):
    removes: bool
    """Whether logind removes segments at all."""
    image_user: str | None = None
    """Whom the image runs as, by number or name; empty is root. None: the image, or docker, can't be asked."""
    login: str = ""
    """This node's user of that number."""
    lingers: bool = False


class RemoveIpc(Check[RemoveIpcFacts], frozen=True):
    """The end of somebody's ssh session does not take the engine's semaphores away."""

    image: str
    host_ipc: bool
    id: ClassVar[str] = "remove-ipc"
    about: ClassVar[About] = About(
        levels=(Level.WARN,),
        reads="logind.conf(5) with its drop-ins; docker: the image's user; /etc/passwd; /var/lib/systemd/linger",
        source="eugr/spark-vllm-docker issue 352 (a comment); spark-arena/sparkrun issue 285; vLLM issue 54259",
        page="""\
When the last session of a user ends, systemd-logind deletes what that user has in /dev/shm, unless RemoveIPC=no is set
or the user lingers. With `container.ipc: host`, an image that runs as the number of such a user keeps the engine's
segments and semaphores there as that user's. Somebody logs out, and a rank ends with

  SemLock._rebuild: FileNotFoundError: [Errno 2] No such file or directory

while the head waits for ever, its GPU at 96 %. One such hang was first reported as a deadlock of CUDA graphs.

Users below 1000, root among them, are never cleaned up after: an image that runs as root is safe, and most do.

  ok       the container has its own /dev/shm; logind removes nothing; the image runs as root, as a user that this node
           does not have, or as one who lingers; or the image is not there yet, which is another check's concern.
  warn     the image runs as one of this node's users, or by a name whose number only the image knows. Either

             loginctl enable-linger USER

           or

             mkdir -p /etc/systemd/logind.conf.d
             printf '[Login]\\nRemoveIPC=no\\n' > /etc/systemd/logind.conf.d/ipc.conf
             systemctl kill -s HUP systemd-logind

It never blocks: as long as nobody logs out, all is well.""",
    )

    def probe(self, host: Host) -> RemoveIpcFacts:
        if not self.host_ipc or not logind.removes_ipc(host.files):
            return RemoveIpcFacts(removes=False)
        user = docker_image.user(host, self.image)
        if user is None or not user.isdecimal():
            return RemoveIpcFacts(removes=True, image_user=user)
        login = users.name(host.files, int(user))
        known = not login.startswith("uid ")
        return RemoveIpcFacts(True, user, login if known else "", known and logind.lingers(host.files, login))

    def judge(self, facts: RemoveIpcFacts) -> Verdict:
        if not self.host_ipc:
            return Verdict(Level.OK, "the container has its own /dev/shm")
        if not facts.removes:
            return Verdict(Level.OK, "logind removes no segments")
        if facts.image_user is None:
            return Verdict(Level.OK, "not looked at: docker or the image is away")
        if facts.image_user in ("", "root"):
            return Verdict(Level.OK, "the image runs as root, whose segments stay")
        if facts.image_user.isdecimal():
            return self._of_number(facts, int(facts.image_user))
        reason = f"the image runs as {facts.image_user}; logind removes the segments of users who log out"
        return Verdict(Level.WARN, reason, "set RemoveIPC=no in /etc/systemd/logind.conf.d")

    def _of_number(self, facts: RemoveIpcFacts, uid: int) -> Verdict:
        if uid < FIRST_PERSON:
            return Verdict(Level.OK, f"the image runs as {uid}, a user of the system, whose segments stay")
        if not facts.login:
            return Verdict(Level.OK, f"the image runs as {uid}, who can't log in here")
        if facts.lingers:
            return Verdict(Level.OK, f"the image runs as {uid}, {facts.login}, who lingers")
        reason = f"the image runs as {uid}, {facts.login} here: logind removes its segments when {facts.login} logs out"
        return Verdict(Level.WARN, reason, f"loginctl enable-linger {facts.login}")
