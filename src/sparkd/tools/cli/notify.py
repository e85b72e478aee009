"""`sparkd notify`: send a test message, and the messages that are left once a unit stays down."""

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from sparkd.agent.daemon.notify import FILE, Outbox
from sparkd.agent.daemon.notify_delivery import deliver
from sparkd.base.config import Notify, load_settings, units
from sparkd.base.host import Host
from sparkd.base.lib import log
from sparkd.base.lib.errors import NOT_RESTARTED, ConfigError, ExitCode, LaunchError, UsageError
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.systemd import read_unit
from sparkd.base.status.notices import TEST, Notice, unit_down
from sparkd.tools.cli.parser import add_action


def add_notify(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    test_parser = add_action(actions, "test", "send a test message now by each way that is configured")
    test_parser.set_defaults(run=send_test)
    flush_parser = add_action(actions, "flush", "send what is left after the end of a unit (started by systemd)")
    flush_parser.set_defaults(run=lambda _args: flush(Host(), os.environ))


def send_test(_: argparse.Namespace) -> int:
    loaded, host = load_settings(os.environ), Host()
    settings = loaded.notify
    if not settings.configured_ways:
        raise UsageError("no way for messages is configured", "man sparkd.toml: notify.command, notify.webhook_file")
    if os.geteuid():
        raise UsageError("what sends messages is for root", "sudo sparkd notify test")
    has_failed = False
    for way in settings.configured_ways:
        try:
            deliver(host.files, settings, way, Notice(TEST, host.name(), "a test message of sparkd", at=time.time()))
            print(f"notify.{way}: sent")
        except LaunchError as error:
            has_failed = True
            print(f"notify.{way}: {error}")
    drop_in = units.dropins(loaded)[-1]
    if differences := units.why_wrong(drop_in, units.compare_file(host.files, drop_in)):
        print(": ".join(differences))
    return ExitCode.LAUNCH_FAILED if has_failed else ExitCode.GOOD


def flush(host: Host, env: Mapping[str, str]) -> ExitCode:
    """Send what is left, and return 11 where that fails. systemd's variables name the ended unit (systemd.exec(5))."""
    state = FILE.read(host.files)
    try:
        settings = load_settings(env, Path(host.files.root)).notify
    except ConfigError:  # as they were when they could be read
        settings = Notify.model_validate(state.settings) if state else Notify()
    redact = Redaction()
    outbox = Outbox(host, settings, log.events(lambda _, line: print(line, file=sys.stderr), redact))
    if not settings.configured_ways or not outbox.open(wait=False):  # an agent runs again: it sends what is left
        return ExitCode.GOOD
    unit, code = env.get("MONITOR_UNIT", ""), env.get("MONITOR_EXIT_STATUS", "")
    if unit and code in map(str, NOT_RESTARTED):
        outbox.record(*unit_down(outbox.state, host.name(), unit, code, redact(read_unit(unit)[1]), time.time()))
    outbox.send()
    outbox.close()
    return ExitCode.LAUNCH_FAILED if outbox.state.queue else ExitCode.GOOD
