"""Inputs without rights, for every parser of text from outside: `python -m tests.fuzz INPUTS SEED`.

Each input is a mutation of a good one. A parser returns, or raises what its callers handle, within LIMIT_SECONDS.
"""

import random
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tests.fuzz_parsers import Parser, parsers

LIMIT_SECONDS = 5.0
"""CPU time; a file of 100,000 brackets takes the YAML reader two."""
MOST_BYTES = 64 << 10
TOKENS = (
    *(
        b"9" * 4400,
        b"-1",
        b"0x" + b"f" * 400,
        b"1e999",
        b"nan",
        b"-inf",
        b"NaN",
        b"Infinity",
        b"1_0",
        "٣٤".encode(),
        "²".encode(),
    ),
    *(
        b"[" * 100_000,
        b'{"a":' * 20_000,
        b"(" * 5000,
        b"\0",
        b"\r",
        b"\n",
        b"\r\n",
        b"\x1b[31m",
        b"\x1b]0;",
        b"\xff\xfe",
    ),
    *(
        b"\\ud800",
        "\ud800".encode("utf-8", "surrogatepass"),
        "\u2028\u202e\x85".encode(),
        b"\\",
        b'"',
        b"'",
        b"`",
        b"$(",
        b"${",
    ),
    *(
        b"{}",
        b"{{",
        b"}}",
        b"{0}",
        b"{a.b[c]!r:>999}",
        b"&a",
        b"*a",
        b"<<: *a",
        b"!!python/object:os.system",
        b"---\n",
        b"\t",
    ),
    *(
        b"null",
        b"true",
        b"[]",
        b":",
        b",",
        b"=",
        b" ",
        b"%",
        b"/../",
        b"#",
        b"|",
        b"Last error:",
        b" pid=1) ",
        b"100%|",
    ),
)


class Finding(NamedTuple):
    parser: str
    problem: str
    data: bytes


def mutate(random_: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    content = bytearray(random_.choice(seeds))
    for _ in range(random_.choice((0, 1, 1, 2, 3, 6))):
        at = random_.randrange(len(content) + 1)
        end = min(len(content), at + random_.choice((1, 4, 16, 200)))
        match random_.randrange(6):
            case 0:
                del content[at:end]
            case 1:
                content[at:at] = content[at:end] * random_.choice((1, 2, 20, 500))
            case 2 | 3:
                content[at : random_.choice((at, end))] = random_.choice(TOKENS)
            case 4:
                other = random_.choice(seeds)
                content[at:end] = other[random_.randrange(len(other) + 1) :][:200]
            case _ if content:
                content[min(at, len(content) - 1)] = random_.randrange(256)
        del content[MOST_BYTES * 4 :]
    return bytes(content[: random_.choice((MOST_BYTES, MOST_BYTES * 4))])


def attempt(name: str, parser: Parser, content: bytes, limit_seconds: float) -> Finding | None:
    began = time.thread_time()
    try:
        parser.run(content)
    except parser.handled:
        pass
    except BaseException as error:  # what else it raises is what is looked for
        if isinstance(error, KeyboardInterrupt):
            raise
        return Finding(name, f"{type(error).__name__}: {str(error)[:120]}", content)
    took = time.thread_time() - began
    return Finding(name, f"took {took:.1f} s", content) if took > limit_seconds else None


def fuzz(name: str, parser: Parser, count: int, seed: int, limit_seconds: float = LIMIT_SECONDS) -> tuple[Finding, ...]:
    """Of each problem the shortest input. The first inputs are the good ones, and each token alone."""
    random_ = random.Random(f"{seed} {name}")
    shortest: dict[str, Finding] = {}
    for data in islice(inputs(random_, parser.seeds), count):
        finding = attempt(name, parser, data, limit_seconds)
        if finding is not None:
            key = "took" if finding.problem.startswith("took") else finding.problem[:40]
            shortest[key] = min(finding, shortest.get(key, finding), key=lambda either: len(either.data))
    return tuple(shortest.values())


def inputs(random_: random.Random, seeds: tuple[bytes, ...]) -> Iterator[bytes]:
    yield from seeds[:20]
    yield from TOKENS
    while True:
        yield mutate(random_, seeds)


def main() -> int:
    total, seed = int(sys.argv[1]), int(sys.argv[2])
    only = sys.argv[3:]
    with tempfile.TemporaryDirectory(prefix="sparkd-fuzz-") as folder:
        made = {name: parser for name, parser in parsers(Path(folder)).items() if not only or name in only}
        whole, problems = total / sum(parser.share for parser in made.values()), 0
        for name, parser in made.items():
            began, each = time.monotonic(), round(whole * parser.share) + 1
            findings = fuzz(name, parser, each, seed)
            problems += len(findings)
            print(f"{name:26} {each:8} inputs {time.monotonic() - began:7.1f} s", flush=True)
            for finding in findings:
                print(f"  {finding.problem}; {len(finding.data)} bytes:\n    {finding.data[:300]!r}", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
