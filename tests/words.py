"""The words of this project: python3 -m tests.words [PATH...] reports each one that the field has a plainer word for,
and each vague name in a function that lives over more than five lines.

A line that must keep one (a quotation, a name of somebody else's) ends with `words: keep`.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPLACEMENTS = {
    r"\banew\b": "again, from the start",
    r"\bwhoever\b|\bwhosoever\b": "a noun: the caller, the user, the process that",
    r"\bbut that\b|\bbut for\b": "except",
    r"\bof then\b|\bby now\b": "leave it out, or name the time",
    r"\bfor what\b": "because, for the one that",
    r"\b(un)?told\b|\btells?\b": "logged, reported, returned, known from",
    r"\basks?\b|\basked\b|\basking\b": "requests, queries, calls, needs",
    r"\bmend(s|ed|ing)?\b|\bunmended\b": "fix, repair",
    r"\bmourn\w*|\bbefalls?\b|\bbefell\b": "shutdown_on_error, happens to",
    r"\billness(es)?\b|\bills?\b": "fault, problem",
    r"\boutwait\w*": "wait, sleep",
    r"\bbells?\b|\bpulse\b": "waker, main loop",
    r"\bstory\b": "load progress",
    r"\bsights?\b": "predicate, match",
    r"\bin hand\b|\bat hand\b": "available, current",
    r"\bbrings? up\b": "starts",
    r"\bgoes on\b|\bwent on\b|\bgo on\b": "continues",
    r"\blie[sn]? in wait\b|\bin vain\b": "without effect",
    r"\bhence\b|\bthereof\b|\btherein\b|\bthereby\b|\bwhereof\b|\bere\b": "a plain connective",
    r"\bthe like\b": "name it, or: similar",
    r"\bwants? a yes\b": "waits for confirmation",
    r"\bwithout a word\b": "without a log line, an error, or output",
    r"\bcan't be looked at\b|\bcould not be looked at\b|\bbe looked at\b": "unreadable, can't be inspected",
}
SUFFIXES = {".py", ".js", ".md", ".toml", ".yaml", ".service", ".in", ".sh"}
SKIPPED = ("CHANGELOG.md", "docs/adr/", "tests/words.py", "tests/machines/answers/", "LICENSE", "requirements.lock")
KEEP = "words: keep"
VAGUE = {"one", "found", "seen", "given", "item", "entry", "obj", "data", "thing", "result"}
MOST_LINES = 5


def main(paths: list[str]) -> int:
    """The number of findings, at most 1."""
    rules = [(re.compile(pattern, re.IGNORECASE), better) for pattern, better in REPLACEMENTS.items()]
    tracked = subprocess.run(["git", "ls-files", "--", *paths], capture_output=True, text=True, check=True).stdout
    found = 0
    for name in tracked.splitlines():
        path = Path(name)
        if path.suffix not in SUFFIXES or name.startswith(SKIPPED) or path.is_symlink() or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            for number, vague, lines in find_vague(ast.parse(text)):
                print(f"{name}:{number}: {vague!r} over {lines} lines: a noun of its subject")
                found += 1
        for number, line in enumerate(text.splitlines(), start=1):
            if KEEP in line:
                continue
            # A name in code is its words: `await_told` holds "told".
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", line.replace("_", " "))
            for rule, better in rules:
                if match := rule.search(words):
                    print(f"{name}:{number}: {match.group()!r}: {better}")
                    found += 1
    print(f"{found} findings" if found else "words: none to replace")
    return 1 if found else 0


def find_vague(tree: ast.AST) -> Iterator[tuple[int, str, int]]:
    """First line, name, and lines from its first use to its last, of names in a function that live too long."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            uses = dict[str, list[int]]()
            for node in ast.walk(function):
                name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
                if name in VAGUE:
                    uses.setdefault(name, []).append(getattr(node, "lineno", 0))
            for name, lines in uses.items():
                if (length := max(lines) - min(lines) + 1) > MOST_LINES:
                    yield min(lines), name, length


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
