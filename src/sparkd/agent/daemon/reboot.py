"""Reboots a node where only that helps, by `supervise.reboot`: docs/adr/0070. Any doubt leaves it to a person."""

import time
from contextlib import suppress
from functools import partial

from msgspec import Struct

from sparkd.agent.daemon.context import Agent
from sparkd.base.host.files import Files
from sparkd.base.host.units import OWN_UNITS
from sparkd.base.lib.errors import Action, NeedsPersonError, SparkdError
from sparkd.base.lib.systemd import is_stop_ordered
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import format_duration
from sparkd.base.state.file import StateFile
from sparkd.base.state.launch_history import End

APART_SECONDS = 6 * 3600.0
"""Shortest time between two reboots by sparkd."""
LOOK_SECONDS = 15.0
"""Limit for a look at who is logged in, at the last reboot, and at systemd's jobs."""
SESSIONS = "/run/systemd/sessions"
"""Folder with a file for each session of logind."""
UNATTENDED = ("greeter", "lock-screen", "background", "manager")
"""Classes of sessions in which nobody works: sd_session_get_class(3). Each may end in -early or -light."""


class LastReboot(Struct, frozen=True):
    at: float
    """UTC seconds."""


FILE = StateFile(LastReboot, "reboot.json")


def reboot_if_due(agent: Agent, error: SparkdError, end: End) -> None:
    """Reboot at the end of a run, once its rank is gone and its end is recorded."""
    if end.action != Action.REBOOT or not agent.settings.supervise.reboot:
        return
    if not (objection := _find_objection(agent, error)):
        text = f"sparkd reboots this node, nothing is to be done: {end.reason}"
        announce(agent, text, str(end.cause))
        with suppress(OSError):  # disks that hang are what a reboot is for
            agent.actions.sync_disks()
        objection = _find_objection(agent, error) or _request_reboot(agent)
    if objection:
        agent.events.error("agent.reboot.refused", reason=objection, hint="sudo systemctl reboot")
    else:
        agent.events.warning("agent.reboot.requested", cause=str(end.cause), reason=end.reason)


def _find_objection(agent: Agent, error: SparkdError) -> str:
    """Why sparkd may not reboot now; empty where it may."""
    if not (isinstance(error, NeedsPersonError) and error.proven):
        return "not all that blocks was proven by checks of this node"
    look = partial(_look_for_objection, agent.host.files)
    try:
        objection = agent.loop.beside(look, LOOK_SECONDS, "looking whether a reboot may be", shielded=True)
    except OSError as look_error:
        objection = str(look_error)
    # A stop may be requested during the look, too.
    return "a stop was requested" if agent.loop.endings.stop_requested else objection


def _look_for_objection(files: Files) -> str:
    stop_objection = "a stop of its unit is ordered, or systemd does not answer" if is_stop_ordered(OWN_UNITS) else ""
    return find_session(files) or find_earlier(files, time.time()) or stop_objection


def find_session(files: Files) -> str:
    """Who is, or may be, logged in; empty where nobody is."""
    try:
        for name in files.names(SESSIONS):
            if name.endswith(".ref"):  # the FIFO of a session
                continue
            lines = files.text(f"{SESSIONS}/{name}", 65536).splitlines()
            fields = {key: value for key, _, value in (line.partition("=") for line in lines)}
            if fields.get("CLASS", "").removesuffix("-light").removesuffix("-early") not in UNATTENDED:
                user = fields.get("USER") or "uid " + fields.get("UID", "?")
                return sanitize(f"{user} may be logged in: session {name}")
    except (OSError, ValueError) as error:
        return f"who is logged in can't be read: {error}"
    return ""


def find_earlier(files: Files, now: float) -> str:
    """Why the last reboot by sparkd does not let it do another; empty where it does. Raises OSError."""
    faults = list[str]()
    last_reboot = FILE.load(files, faults.append)
    if last_reboot is None or faults:
        return "".join(faults)
    return judge_earlier(FILE.path, last_reboot.at, now, "requested a reboot", APART_SECONDS)


def judge_earlier(path: str, at: float, now: float, what: str, apart_seconds: float) -> str:
    """Why what was last done `at` that time may not be done again yet; empty where it may. Pure."""
    seconds = now - at
    if not seconds >= 0:  # NaN, too
        return f"by {path} sparkd last {what} in the future: the clock was set back"
    objection = (
        f"it {what} {format_duration(seconds)} ago, and does so once in {format_duration(apart_seconds)} at most"
    )
    return objection if seconds < apart_seconds else ""


def announce(agent: Agent, text: str, cause: str, *, aside: bool = False) -> None:
    """Send a message that the notify thread, or the next unit, would send too late.

    `aside`: the caller is another thread than the main one.
    """
    settings = agent.settings.notify
    if not settings.configured_ways:
        return
    from sparkd.agent.daemon.notify_delivery import deliver
    from sparkd.base.status.notices import NEEDS_PERSON, TEXT_LIMIT, Notice

    if NEEDS_PERSON not in settings.events:
        return
    node = sanitize(agent.host.name(), 64)
    recipe, text = agent.reporter.report.recipe, sanitize(text, TEXT_LIMIT)
    notice = Notice(NEEDS_PERSON, node, text, recipe, cause, time.time())
    for way in settings.configured_ways:
        send = partial(deliver, agent.host.files, settings, way, notice)
        try:
            if aside:
                send()
            else:
                agent.loop.beside(send, agent.pace.message_seconds, f"the message by notify.{way}", shielded=True)
        except (SparkdError, OSError) as error:
            agent.events.warning("notify.message.failed", by=way, reason=str(error), hint="sudo sparkd notify test")


def _request_reboot(agent: Agent) -> str:
    """Request the reboot. Returns why it did not work; empty where the node reboots."""
    if not agent.store.write(FILE, LastReboot(time.time())):  # without it, the node might reboot again and again
        return f"{FILE.path} can't be written"
    try:
        refusal = agent.actions.reboot()
    except OSError as error:
        return str(error)
    if "Operation inhibited" in refusal:  # nothing was done: the next request need not wait
        agent.store.write(FILE, LastReboot(0.0))
    return refusal
