"""Functions by size and branches, where code waits, locks and keeps state, and what reads badly.

A place is `path:function`, without a line's number: it stays where lines above it change.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from tests.count.source import FunctionNode, Module, functions, qualified_name, statements

MAX_BRANCHES = 12
BRANCHES = (*(ast.If, ast.For, ast.AsyncFor, ast.While, ast.IfExp, ast.ExceptHandler, ast.match_case, ast.Assert),)
WAITS = (
    *(f"base/lib/main_loop.py:MainLoop.{name}" for name in ("wait", "wait_until", "beside", "start", "spawn")),
    *(f"base/lib/main_loop.py:MainLoop.{name}" for name in ("submit", "result")),
    *(f"base/lib/main_loop.py:MainLoop.{name}" for name in ("sleep_uninterruptible", "wait_fd_uninterruptible")),
    *(f"base/lib/main_loop.py:MainLoop.{name}" for name in ("run_with_timeout", "run_until_stop")),
    *(f"agent/daemon/deps.py:Deps.{name}" for name in ("wait", "run_aside")),
    "agent/daemon/context.py:Context.run_aside",
    *(f"base/lib/event_loop.py:EventLoop.{name}" for name in ("submit", "spawn", "begin", "call")),
    *(f"base/lib/event_loop.py:{name}" for name in ("read_in_thread", "run_in_thread")),
)
"""The functions by which code waits or leaves work to others, now or in earlier commits. New ones are added by hand."""
NUMBERS = re.compile(r"(?=.*\d)[A-Z\d_e .,()*/+<-]+")
"""An expression of numbers and of constants, or a tuple of them."""
SUBJECTS = {
    "history": "(launch_)?history",
    "notify": "notify|notify_[a-z]+|notices?|notice_[a-z]+|messages?|webhook",
    "switch": "switch|switching|switch_[a-z]+|use|rollback|known_good",
    "setup": "setup|setup_manifest|init|tune",
    "capture": "capture|capture_[a-z]+",
    "fabric": "fabric|fabric_ports|(rdma_)?traffic|traffic_programs",
    "docker": "docker|dockerd|docker_[a-z]+",
    "gpu": "gpu|gpu_[a-z]+",
}
"""A module is of a subject where its file or a folder above it is named so."""


class Function(NamedTuple):
    place: str
    lines: int
    branches: int


class Room(NamedTuple):
    subject: str
    packages: int
    modules: int


def measure_functions(modules: Iterable[Module]) -> tuple[Function, ...]:
    """Lines from `def` to the end, without decorators; what is nested counts for both functions."""
    return tuple(
        Function(f"{module.path}:{name}", (node.end_lineno or node.lineno) - node.lineno + 1, count_branches(node))
        for module in modules
        for name, node in functions(module.tree)
    )


def count_branches(function: FunctionNode) -> int:
    """One for each if, elif, for, while, conditional expression, except, match case and assert, each `if` of a
    comprehension, and each operator `and` and `or`. No `else`, no `for` of a comprehension.
    """
    count = 0
    for node in ast.walk(function):
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += len(node.ifs)
        else:
            count += isinstance(node, BRANCHES)
    return count


def percentile(sizes: Iterable[int], percent: int) -> int:
    """The smallest size that is not exceeded by `percent` of all (nearest rank); 0 of none."""
    ranked = sorted(sizes)
    return ranked[-(-len(ranked) * percent // 100) - 1] if ranked else 0


def list_waits(modules: Iterable[Module]) -> list[str]:
    """Those of WAITS that are defined."""
    defined = {f"{module.path}:{name}" for module in modules for name, _ in functions(module.tree)}
    return [place for place in WAITS if place in defined]


def list_calls(modules: Iterable[Module], *names: str) -> list[str]:
    """Places where a function or class is called by one of these names, dots included, or by a longer dotted one.

    The place of a call at module level is the path. The first argument that is a literal string follows the place.
    """
    return [
        " ".join((place, *_first_literal(call)))
        for module in modules
        if any(name in module.text for name in names)
        for place, call in _calls(module.tree, module.path)
        if f".{ast.unparse(call.func)}".endswith(tuple(f".{name}" for name in names))
    ]


def list_openings(modules: Iterable[Module], *words: str) -> list[str]:
    """Places with a docstring that begins with one of these words; the place of a field is its class."""
    return [
        f"{module.path}:{scope}"
        for module in modules
        for scope, node in statements(module.tree)
        if _docstring(node).partition(" ")[0] in words
    ]


def list_bare_numbers(modules: tuple[Module, ...]) -> list[str]:
    """Constants by NUMBERS that are used once or never, and that neither a docstring nor a comment explains.

    The comment may stand above, or behind the value.
    """
    uses = Counter(name for module in modules for name in _uses(module))
    return [
        f"{module.path} {node.id}"
        for module in modules
        for statement, following in pairwise([*module.tree.body, ast.Pass()])
        if isinstance(statement, ast.Assign) and NUMBERS.fullmatch(ast.unparse(statement.value))
        if not _docstring(following) and not _has_comment(module, statement)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and uses[f"{module.name}.{node.id}"] < 2
    ]


def list_rooms(modules: Iterable[Module]) -> list[Room]:
    """Each subject with the packages and modules that are named for it, without `__init__.py`."""
    rooms = []
    for subject, names in SUBJECTS.items():
        members = [
            module
            for module in modules
            if not module.is_init and any(re.fullmatch(names, part) for part in module.path[:-3].split("/"))
        ]
        rooms.append(Room(subject, len({module.package for module in members}), len(members)))
    return rooms


def _uses(module: Module) -> Iterator[str]:
    """What the module reads, of itself and by its imports, each as the dotted name of its module and its own."""
    imports = (node for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom))
    origins = {alias.asname or alias.name: f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield origins.get(node.id, f"{module.name}.{node.id}")
        elif isinstance(node, ast.Attribute):
            yield f"{origins.get(ast.unparse(node.value))}.{node.attr}"


def _docstring(statement: ast.stmt) -> str:
    match statement:
        case ast.Expr(ast.Constant(str(text))):
            return text
    return ""


def _has_comment(module: Module, statement: ast.stmt) -> bool:
    above, *own = ["", *module.text.splitlines()][statement.lineno - 1 : (statement.end_lineno or 0) + 1]
    return above.startswith("#") or any("  # " in line for line in own)


def _calls(tree: ast.AST, path: str, scope: str = "") -> Iterator[tuple[str, ast.Call]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield f"{path}:{scope}" if scope else path, node
        yield from _calls(node, path, qualified_name(scope, node))


def _first_literal(call: ast.Call) -> list[str]:
    return [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)][:1]
