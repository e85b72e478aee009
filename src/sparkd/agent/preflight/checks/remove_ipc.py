"""Whether logind would delete segments in /dev/shm under a running engine, when the engine's user logs out."""

from __future__ import annotations

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, ok, skipped, warn
from sparkd.base.host import Host, docker_image, processes
from sparkd.base.host.files import Files
from sparkd.base.host.units import find_drop_ins, parse_assignments
from sparkd.base.plan.inputs import CheckInputs

LOGIND_CONF = tuple(f"{folder}/systemd/logind.conf" for folder in ("/etc", "/run", "/usr/lib"))
"""The first one that exists counts; all drop-ins override it."""
KEEP_SERVICES = "sudo loginctl enable-linger"  # words: keep
FIRST_PERSON = 1000
"""Least number of a person. Lower ones are users of the system, whose segments logind leaves alone."""


class RemoveIpcFacts(Struct, frozen=True):
    removes: bool
    image_user: str | None = None
    """The image's user, by number or name; empty is root. None: unknown, without the image or docker."""
    login: str = ""
    """The name of this user on the node; empty where there is none."""
    lingers: bool = False  # words: keep - systemd's word, and a key of the report


class RemoveIpc(Check[RemoveIpcFacts], frozen=True):
    image: str
    host_ipc: bool
    id = "remove-ipc"
    levels = (Level.WARN,)

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> RemoveIpc:
        return cls(inputs.plan.image_to_run, inputs.host_ipc)

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
            return ok("the container has its own /dev/shm")
        if not facts.removes:
            return ok("logind removes no segments")
        if facts.image_user is None:
            return skipped("not checked: docker or the image is away")
        if facts.image_user in ("", "root"):
            return ok("the image runs as root, whose segments stay")
        if not facts.image_user.isdecimal():
            reason = f"the image runs as {facts.image_user}; logind removes the segments of users who log out"
            return warn(reason, "set RemoveIPC=no in /etc/systemd/logind.conf.d")
        runs_as = f"the image runs as {int(facts.image_user)}"
        if int(facts.image_user) < FIRST_PERSON:
            return ok(f"{runs_as}, a user of the system, whose segments stay")
        if not facts.login:
            return ok(f"{runs_as}, who can't log in here")
        if facts.lingers:  # words: keep
            return ok(f"{runs_as}, {facts.login}, whose services logind keeps")
        reason = f"{runs_as}, {facts.login} here: logind removes its segments when {facts.login} logs out"
        return warn(reason, f"{KEEP_SERVICES} {facts.login}")


def removes_ipc(files: Files) -> bool:
    """Whether logind deletes a user's segments and semaphores with the last session: RemoveIPC= of logind.conf(5)."""
    if not files.exists("/usr/lib/systemd/systemd-logind"):
        return False
    value = "yes"
    main_file = [path for path in LOGIND_CONF if files.exists(path)][:1]
    for path in (*main_file, *find_drop_ins(files, [f"{path}.d" for path in LOGIND_CONF])):
        for section, key, text in parse_assignments(files.text(path, limit=1 << 20)):
            if (section, key) == ("Login", "RemoveIPC") and text:
                value = text
    return value.lower() not in ("no", "false", "off", "0", "n", "f")
