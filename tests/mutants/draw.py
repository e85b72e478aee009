"""Mutants: the source with one expression or statement changed, drawn by a seed.

Changed are comparisons, `and`, `or`, `not`, conditions, numbers, returned values, defaults, and statements that are a
call, which are removed. Functions that end processes or remove files are never changed: the tests may run as root.
"""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.count.source import Module, qualified_name

SOURCE = "src/sparkd"
NEVER = {
    *(f"agent/actions/{name}.py" for name in ("processes", "rank_process", "segments", "orphans", "dockerd")),
    "agent/engine/memory_guard/killer.py",
}
HARMFUL = {
    *("kill", "killpg", "pidfd_send_signal", "send_signal", "terminate"),
    *("unlink", "remove", "rmdir", "rmtree", "mount", "umount"),
}
"""No function that calls one of these is changed."""
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}


class Mutant(NamedTuple):
    module: str
    path: str
    line: int
    scope: str
    before: str
    after: str
    start: int
    """Bytes in the source of its module, to `end`."""
    end: int

    def __str__(self) -> str:
        return f"{SOURCE}/{self.path}:{self.line} {' '.join(self.before.split())} -> {self.after}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]


def draw(modules: Iterable[Module], package: str, seed: int, count: int) -> list[Mutant]:
    """Up to `count` mutants of the package, in an order that depends on the seed, and not on lines and other mutants.

    So the same seed draws the same mutants on another commit, where their code is the same.
    """
    twins = Counter[tuple[str, ...]]()
    ranked = []
    for module in modules:
        if module.package != package or module.path in NEVER:
            continue
        for mutant in find_mutants(module):
            twin = (mutant.path, mutant.scope, mutant.before, mutant.after)
            twins[twin] += 1
            key = repr((seed, *twin, twins[twin]))
            ranked.append((hashlib.sha256(key.encode()).digest(), mutant))
    return [mutant for _, mutant in sorted(ranked)[:count]]


def find_mutants(module: Module) -> Iterator[Mutant]:
    """All of a module, by line."""
    lengths = [0]
    for line in module.text.encode().splitlines(keepends=True):
        lengths.append(lengths[-1] + len(line))
    source = module.text.encode()
    for scope, node, after in _changes(module.tree, ""):
        start = lengths[node.lineno - 1] + node.col_offset
        end = lengths[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        before = source[start:end].decode()
        yield Mutant(module.name, module.path, node.lineno, scope, before, after, start, end)


def _changes(tree: ast.AST, scope: str) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """Scope, node and replacement."""
    if isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef)) and _is_harmful(tree):
        return
    scope = qualified_name(scope, tree)
    for node, after in _replace(tree):
        yield scope, node, after
    for name, value in ast.iter_fields(tree):
        if name in {"annotation", "returns", "decorator_list", "pattern"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            # Up to Python 3.11 what stands in an f-string has no position of its own.
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield from _changes(child, scope)


def _replace(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                for other in COMPARISONS[type(operator)]:
                    changed = [*node.ops[:index], other(), *node.ops[index + 1 :]]
                    yield node, f"({ast.unparse(ast.Compare(node.left, changed, node.comparators))})"
        case ast.BoolOp():
            other_operator = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node, f"({ast.unparse(ast.BoolOp(other_operator, node.values))})"
        case ast.UnaryOp(op=ast.Not()):
            yield node, f"({ast.unparse(node.operand)})"
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            yield node, f"({number + 1})"
            yield node, f"({number - 1})"
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield node, "pass"
        case ast.If() | ast.While() | ast.IfExp():
            if not isinstance(node.test, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
                yield node.test, f"(not {ast.unparse(node.test)})"
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from _replace_returns(node)
            for default in (*node.args.defaults, *node.args.kw_defaults):
                yield from _replace_default(default)
        case ast.ClassDef():
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign):
                    yield from _replace_default(statement.value)


def _replace_returns(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[ast.stmt, str]]:
    truths = ("True", "False") if isinstance(function.returns, ast.Name) and function.returns.id == "bool" else ()
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            for value in truths or ("None",):
                if ast.unparse(node.value) != value:
                    yield node, f"return {value}"
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)):
            waiting.extend(ast.iter_child_nodes(node))


def _replace_default(default: ast.expr | None) -> Iterator[tuple[ast.expr, str]]:
    """Numbers are changed as all others are."""
    match default:
        case ast.Constant(value=bool()):
            yield default, str(not default.value)
        case ast.Constant(value=str()):
            yield default, '""' if default.value else '"mutant"'


def _is_harmful(function: ast.AST) -> bool:
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return any(ast.unparse(callee).rpartition(".")[2] in HARMFUL for callee in calls)
