"""Reports the GPU beside what the rank does, and what slows it."""

from sparkd.agent.daemon.context import Agent
from sparkd.agent.engine.gpu_throttle import THROTTLE_HINT, THROTTLE_ID, GpuThrottleMonitor
from sparkd.base.status.figures import GpuReport
from sparkd.base.status.model import FindingReport


def make_gpu_monitor(agent: Agent) -> GpuThrottleMonitor | None:
    return GpuThrottleMonitor(agent.loop.start, agent.events) if agent.plan.container.gpus == "all" else None


def report_gpu(agent: Agent, message: str, gpu: GpuThrottleMonitor | None) -> str:
    """Report the GPU. Returns the message, with what slows the GPU, which still serves: a finding, not a phase."""
    if gpu is None:
        return message
    throttling = gpu.check()
    if (sample := gpu.first) is not None:
        watts = None if sample.power_watts is None else round(sample.power_watts)
        figures = GpuReport(sample.name, sample.sm_mhz, watts, sample.temperature_celsius, sample.utilization_percent)
        agent.reporter.update(gpu=figures)
    agent.reporter.replace_finding(
        THROTTLE_ID, FindingReport(THROTTLE_ID, "warn", throttling, THROTTLE_HINT) if throttling else None
    )
    return f"{message}; {throttling}: {THROTTLE_HINT}" if throttling else message
