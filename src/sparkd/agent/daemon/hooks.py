"""Runs the operator's hooks: programs in /etc/sparkd/preflight.d that may block each launch."""

import signal
import time
from collections.abc import Iterable, Mapping
from shlex import quote

from msgspec.structs import replace

from sparkd.agent.daemon.operator_program import DEADLINE_SECONDS, ENVIRONMENT, Wait, first_line, run_program
from sparkd.agent.preflight.check import Finding, Verdict, block, ok, unknown
from sparkd.agent.preflight.hooks import Hook

_VERDICTS = {1: block, 2: unknown}


def hook_environment(role: str, rank: int) -> dict[str, str]:
    """The complete environment of a hook."""
    return {**ENVIRONMENT, "NODE_ROLE": role, "NODE_RANK": str(rank)}


def run_hooks(
    hooks: Iterable[Hook], wait: Wait, env: Mapping[str, str], deadline_seconds: float = DEADLINE_SECONDS
) -> tuple[Finding, ...]:
    """Run the hooks one after the other, each with its own deadline. A hook's process group ends with it."""
    return tuple(hook.refusal if hook.problem else _run_hook(hook, wait, env, deadline_seconds) for hook in hooks)


def _run_hook(hook: Hook, wait: Wait, env: Mapping[str, str], deadline_seconds: float) -> Finding:
    began = time.monotonic()
    try:
        code, output = run_program((hook.path,), wait, env, deadline_seconds)
    except OSError as error:
        hint = f"is the program of its first line there? head -n 1 {quote(hook.path)}"
        return replace(hook, problem=f"{hook.path} can't be run: {error.strerror}", hint=hint).refusal
    if code is None:
        reason = f"{hook.path} did not end within {deadline_seconds:g} s and was killed"
        verdict = unknown(reason, "fix the hook, or move it away")
    else:
        verdict = _judge_exit(code, first_line(output))
    seconds = round(time.monotonic() - began, 3)
    return Finding(hook.id, verdict, {"path": hook.path, "exit_code": code}, seconds)


def _judge_exit(code: int, line: str) -> Verdict:
    if not code:
        return ok(line or "good")
    if code < 0:
        end = f"killed by signal {-code} ({signal.strsignal(-code) or 'no name'})"
    else:
        end = f"exit code {code}" + ("" if code in _VERDICTS else ", which no hook should have")
    return _VERDICTS.get(code, unknown)(f"{line} ({end})" if line else end, "result of the operator's own check")
