"""Segments that systemd-logind would delete under a running engine."""

from __future__ import annotations

from msgspec import Struct

from sparkd.host import Host, docker_image, processes
from sparkd.host.files import Files
from sparkd.host.units import find_drop_ins, parse_assignments
from sparkd.preflight.check import About, Check, Level, Verdict

LOGIND = "/usr/lib/systemd/systemd-logind"
LOGIND_CONF = tuple(f"{folder}/systemd/logind.conf" for folder in ("/etc", "/run", "/usr/lib"))
"""The first that there is counts, under all drop-ins."""
KEEP_SERVICES = "loginctl enable-linger"  # words: keep
FALSE = ("no", "false", "off", "0", "n", "f")
FIRST_PERSON = 1000
"""Users below are the system's own, whose segments logind leaves alone."""


class RemoveIpcFacts(Struct, frozen=True):
    removes: bool
    """Whether logind removes segments at all."""
    image_user: str | None = None
    """The image's user, by number or name; empty is root. None: unknown, without the image or docker."""
    login: str = ""
    """This node's user of that number."""
    lingers: bool = False  # words: keep - systemd's word, and a key of the report


class RemoveIpc(Check[RemoveIpcFacts], frozen=True):
    """The end of an ssh session does not delete the engine's semaphores."""

    image: str
    host_ipc: bool
    id = "remove-ipc"
    about = About(
        levels=(Level.WARN,),
        reads="logind.conf(5) with its drop-ins; docker: the image's user; /etc/passwd; "
        "/var/lib/systemd/linger",  # words: keep
        source="eugr/spark-vllm-docker issue 352 (a comment); spark-arena/sparkrun issue 285; vLLM issue 54259",
        page=f"""\
When the last session of a user ends, systemd-logind deletes that user's files in /dev/shm, unless RemoveIPC=no is set
or loginctl keeps the user's services (see below). With `container.ipc: host`, an image that runs with the number of
such a user has the engine's segments and semaphores there. The user logs out, and a rank ends with

  SemLock._rebuild: FileNotFoundError: [Errno 2] No such file or directory

while the head waits for ever, its GPU at 96 %. logind leaves the files of users below 1000 alone: an image that runs as
root is safe, and most do.

  warn     the image runs as one of this node's users, or by a name whose number only the image knows. Either

             {KEEP_SERVICES} USER

           or

             mkdir -p /etc/systemd/logind.conf.d
             printf '[Login]\\nRemoveIPC=no\\n' > /etc/systemd/logind.conf.d/ipc.conf
             systemctl kill -s HUP systemd-logind

It never blocks: as long as nobody logs out, all is well.""",
    )

    def probe(self, host: Host) -> RemoveIpcFacts:
        if not self.host_ipc or not removes_ipc(host.files):
            return RemoveIpcFacts(removes=False)
        user = docker_image.read_user(host, self.image)
        if user is None or not user.isdecimal():
            return RemoveIpcFacts(removes=True, image_user=user)
        login = processes.user_name(host.files, int(user))
        if login.startswith("uid "):
            return RemoveIpcFacts(removes=True, image_user=user)
        kept = host.files.exists(f"/var/lib/systemd/linger/{login}")  # words: keep
        return RemoveIpcFacts(True, user, login, kept)

    def judge(self, facts: RemoveIpcFacts) -> Verdict:
        if not self.host_ipc:
            return Verdict(Level.OK, "the container has its own /dev/shm")
        if not facts.removes:
            return Verdict(Level.OK, "logind removes no segments")
        if facts.image_user is None:
            return Verdict(Level.OK, "not checked: docker or the image is away")
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
        if facts.lingers:  # words: keep
            return Verdict(Level.OK, f"the image runs as {uid}, {facts.login}, whose services logind keeps")
        reason = f"the image runs as {uid}, {facts.login} here: logind removes its segments when {facts.login} logs out"
        return Verdict(Level.WARN, reason, f"{KEEP_SERVICES} {facts.login}")


def removes_ipc(files: Files) -> bool:
    """Whether logind deletes a user's segments and semaphores with the last session: RemoveIPC= of logind.conf(5)."""
    if not files.exists(LOGIND):
        return False
    value = "yes"
    main = [path for path in LOGIND_CONF if files.exists(path)][:1]
    for path in (*main, *find_drop_ins(files, [f"{path}.d" for path in LOGIND_CONF])):
        for one in parse_assignments(files.text(path, limit=1 << 20)):
            if (one.section, one.key) == ("Login", "RemoveIPC") and one.value:
                value = one.value
    return value.lower() not in FALSE
