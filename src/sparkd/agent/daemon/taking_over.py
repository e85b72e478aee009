"""Takes over a rank that serves, and has outlived an agent that crashed.

There is no preflight, no launch and no reading of the configuration: the rank continues by the plan that it was started
with, in its epoch. A changed configuration counts at the next restart.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from sparkd import __version__
from sparkd.agent.actions.rank_process import Rank, open_ended_pidfd
from sparkd.agent.daemon.configuration_stamp import FORM, digest_stamp
from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.head_config import share_config
from sparkd.agent.daemon.kept_rank import FILE, KeptRank
from sparkd.agent.daemon.own_rank import start_threads, take_rank
from sparkd.agent.daemon.readahead import begin_restore
from sparkd.base.host import Host
from sparkd.base.host.cgroups import read_group
from sparkd.base.host.processes import GONE, read_process
from sparkd.base.lib.errors import SparkdError
from sparkd.base.plan.agreement import PLAN_PATH, dump_values
from sparkd.base.state.rank_record import LOG_POSITION, RANK_FILE, RankRecord, RankStage, load_rank
from sparkd.base.status.model import FindingReport, NodeReport, Phase, parse, read_report

TAKEOVERS_ALLOWED, TAKEOVERS_WITHIN_SECONDS = 2, 600.0
"""A third crash within that time ends the rank: a bug must not have it taken over without end."""
CHANGED = "configuration"


class AdoptableRank(Struct, frozen=True):
    """A rank whose agent has crashed."""

    record: RankRecord
    kept: KeptRank
    report: NodeReport | None
    """The last report of that agent."""
    reloaded: bool = False
    """The agent was reloaded: it is the same process, with another program."""
    ended: bool = False
    """The rank has ended meanwhile."""


def find_adoptable_rank(
    host: Host, role: str, invocation: str, refuse: Callable[[str], object], *, handed: bool = False
) -> AdoptableRank | None:
    """Find a rank to take over. Raises OSError where it is unknown whether there is one.

    `invocation`: this process's, the same as the rank's after a reload. `refuse` gets the reason where a rank that
    serves can't be taken over. `handed`: this is the new program after a reload; it also takes a rank that has ended
    meanwhile, to explain its end.
    """
    known_rank = load_rank(host)
    record, has_ended = known_rank.record, not known_rank.alive
    if record is None or record.stage is not RankStage.READY:
        return None
    if has_ended and not handed:
        refuse("its engine has ended")
        return None
    if not has_ended and not known_rank.guarded:
        refuse("its memory guard has ended")
        return None
    faults = list[str]()
    kept = FILE.load(host.files, faults.append)
    if reason := _find_objection(record, kept, role, invocation, host.uptime_seconds(), faults):
        refuse(reason)
        return None
    assert kept is not None
    report = parse(read_report(host.files))
    last_report = report if report is not None and report.rank_id == record.rank_id else None
    return AdoptableRank(record, kept, last_report, ended=has_ended)


def _find_objection(
    record: RankRecord, kept: KeptRank | None, role: str, invocation: str, now: float, faults: list[str]
) -> str:
    """Why the rank can't be taken over; empty where it can. `now`: seconds since boot."""
    if kept is None:
        return faults[0] if faults else f"{FILE.path} is missing"
    if kept.rank_id != record.rank_id:
        return f"{FILE.path} is of another rank"
    if kept.context.role != role:
        return f"it is a {kept.context.role}'s"
    if invocation != record.invocation and len(_list_recent_crashes(record, now)) >= TAKEOVERS_ALLOWED:
        minutes = TAKEOVERS_WITHIN_SECONDS / 60
        return f"it outlives no more than {TAKEOVERS_ALLOWED} crashes of its agents within {minutes:.0f} minutes"
    return ""


def _list_recent_crashes(record: RankRecord, now: float) -> tuple[float, ...]:
    return tuple(at for at in record.taken_over if now - at < TAKEOVERS_WITHIN_SECONDS)


def open_rank(host: Host, adoptable: AdoptableRank) -> Rank | None:
    """Open the rank, which its process alone proves, since docker may be away; None where it has just ended."""
    record, kept = adoptable.record, adoptable.kept

    def make_rank(pidfd: int) -> Rank:
        start = record.start_time, record.started_at
        return Rank(record.container_id, kept.name, kept.image_id, record.pid, pidfd, *start)

    if adoptable.ended:
        return make_rank(open_ended_pidfd())
    try:
        pidfd = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return None
    with suppress(*GONE):
        # The process is read after the descriptor is open, which keeps its pid from being used again.
        process, group = read_process(host.files, record.pid), read_group(host.files, record.pid)
        if process and (process.start_time, group.container_id) == (record.start_time, record.container_id):
            return make_rank(pidfd)
    os.close(pidfd)
    return None


def note_owner(agent: Agent, adoptable: AdoptableRank) -> AdoptableRank:
    """Make the rank's record name this process, if it can be written.

    From then on a crash is counted, and a stop ends the rank.
    """
    record, now = adoptable.record, agent.host.uptime_seconds()
    own_invocation = agent.owner.invocation
    crashes = (*_list_recent_crashes(record, now), *(() if record.invocation == own_invocation else (now,)))
    record = replace(record, invocation=own_invocation, taken_over=crashes)
    agent.store.write_private(RANK_FILE, record)
    return replace(adoptable, record=record, reloaded=adoptable.record.invocation == own_invocation)


def first_report(adoptable: AdoptableRank, first: NodeReport) -> NodeReport:
    """The first report of this process: `first`, with what the agent before this one knew of the rank."""
    record, last_report = adoptable.record, adoptable.report
    first = replace(
        first,
        phase=Phase.SERVING,
        epoch=record.epoch,
        transport=record.transport,
        plan_digest=adoptable.kept.agreement.digest,
        rank_id=record.rank_id,
    )
    if last_report is None:
        engine = replace(first.engine, container_id=record.container_id, image=adoptable.kept.image_id)
        return replace(first, engine=engine)
    continued: Mapping[str, object] = {
        name: getattr(last_report, name)
        for name in ("versions", "config_digest", "findings", "engine", "memory", "smoke_passed", "message")
    }
    return replace(first, **continued)


def take_over(agent: Agent, adoptable: AdoptableRank, rank: Rank) -> None:
    """Make the rank this agent's from now on. Raises OSError where it can't be watched."""
    host, record = agent.host, adoptable.record
    since = "0"
    with suppress(OSError):
        since = host.files.text(LOG_POSITION, limit=64).strip() or since
    rank.watch(agent.loop)
    age_seconds = host.uptime_seconds() - rank.start_time / os.sysconf("SC_CLK_TCK")
    running = take_rank(agent, rank, record, since, age_seconds)
    running.log.resume(adoptable.kept.sources)
    running.mark_ready()
    agent.agreed.keep(adoptable.kept.agreement)
    agent.launch_row.resume(record.rank_id)
    start_threads(agent, running)
    agent.log.bind(epoch=record.epoch)
    agent.monitor.track(*adoptable.kept.peers)
    agent.cluster.publish(PLAN_PATH, dump_values(adoptable.kept.agreement.values))
    if agent.context.is_head:
        with suppress(SparkdError):  # only a worker that starts again needs it
            share_config(agent)
    if adoptable.reloaded:
        agent.events.info("agent.reload.ended", version=__version__, hint="")
    else:
        reason = "the agent before this one ended, and its engine serves on"
        hint = f"nothing is to be done; how that one ended: journalctl -u sparkd-{agent.context.role}"
        agent.events.warning("engine.rank.taken_over", container=rank.container_id[:12], reason=reason, hint=hint)
    if agent.configured_at:  # else a share hangs: what the agent before has found holds
        agent.reporter.replace_finding(CHANGED, _find_change(agent, adoptable.kept.stamp))
    begin_restore(agent)  # the agent before may have been killed before it did that
    agent.reporter.publish()
    agent.loop.report_ready()  # only now, as in `serve`
    # What ends the rank is imported now, and not once an upgrade of the package has replaced it.
    agent.run_aside("containers", lambda: agent.actions.containers)


def _find_change(agent: Agent, stamp: str) -> FindingReport | None:
    """The finding on a configuration of another stamp than the rank's; None also where that has an earlier form."""
    if not stamp.startswith(FORM) or digest_stamp(agent) == stamp:
        return None
    reason = "it has changed since this engine was started, and counts at the next restart"
    hint = f"sudo systemctl restart sparkd-{agent.context.role}"
    agent.events.warning("engine.configuration.changed", reason=reason, hint=hint)
    return FindingReport(CHANGED, "warn", f"the configuration: {reason}", hint)
