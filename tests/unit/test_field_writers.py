"""In the agent's layer a field is written by the class that declares it: nothing assigns to a field of another object.

So a reader finds all that changes a field in one class, and a thread can't change what the main loop reads.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

AGENT = Path(__file__).parents[2] / "src/sparkd/agent"


def list_foreign_writes(text: str) -> Iterator[str]:
    """Each field that is assigned, augmented or deleted, itself or an item of it, but those of `self`."""
    for node in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.expr)):
        target = node
        while isinstance(target, ast.Subscript):
            target = target.value
        is_written = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
        if is_written and isinstance(target, ast.Attribute) and ast.unparse(target.value) != "self":
            yield f"{node.lineno}: {ast.unparse(target)}"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr", "object.__setattr__"):
            yield f"{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("running.objects = 1, 2", 1),
        ("running.count += 1", 1),
        ("self.rank.ended = True", 1),
        ("agent.rank.counts['a'] = 1", 1),
        ("known, agent.state = read()", 1),
        ("del running.hang", 1),
        ("with read() as agent.file: pass", 1),
        ("setattr(running, 'hang', None)", 1),
        ("self.count, count, counts['a'] = running.objects", 0),
        ("self.counts['a'] += running.count", 0),
    ],
)
def test_what_counts_as_a_foreign_write(line: str, count: int) -> None:
    assert len([*list_foreign_writes(line)]) == count


@pytest.mark.parametrize("path", sorted(AGENT.rglob("*.py")), ids=lambda path: str(path.relative_to(AGENT)))
def test_no_module_writes_another_objects_fields(path: Path) -> None:
    assert [*list_foreign_writes(path.read_text())] == []
