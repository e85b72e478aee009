"""What lines of a log mean: the known errors in it, with what to do.

Two tables know them: data/known-errors.toml those of vLLM and of what it runs on, data/kernel-log.toml the messages of
the kernel, in the forms in which `journalctl -k` and dmesg print them. A line of such a form is looked up in the
kernel's first. Lines that no table knows are no errors here: `sparkd logs` marks by the same tables which line of all
nodes failed first (failure_marks.py).
"""

from collections.abc import Iterable, Iterator

from sparkd.base.host.kernel_events import parse_printed
from sparkd.base.lib.text import sanitize
from sparkd.base.vllm.known_errors import KnownError, explain


def find_known(lines: Iterable[str]) -> dict[KnownError, tuple[str, int]]:
    """Each known error once, with its first line and a count of its lines.

    In the order in which they first come: what failed first stands first.
    """
    known_errors: dict[KnownError, tuple[str, int]] = {}
    for line in lines:
        if (known := _explain_kernel(line) or explain(line)) is not None:
            first, count = known_errors.get(known, (line, 0))
            known_errors[known] = first, count + 1
    return known_errors


def render_explanations(lines: Iterable[str]) -> Iterator[str]:
    """The first line of each known error, with its meaning and what to do."""
    for known, (line, count) in find_known(lines).items():
        times = f" ({count} lines)" if count > 1 else ""
        yield f"{sanitize(line.strip(), 200)}{times}"
        yield f"  means: {known.meaning}\n  do:    {known.remedy}\n  known: {known.source}"


def _explain_kernel(line: str) -> KnownError | None:
    """The known error of a line that the kernel printed; None for any other line."""
    if (event := parse_printed(line)) is None:
        return None
    remedy = f"{event.effect.action}: {event.effect.hint}"
    return KnownError((event.kind,), event.reason, remedy, "sparkd's table of the kernel's messages")
