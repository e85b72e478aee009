"""The modules below a source folder, what they import, and which of them a root pulls in."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
LAYERS = ("base", "agent", "tools")
"""Folders of packages; all others right below the top package are packages."""


class Module(NamedTuple):
    name: str
    """Dotted; of a package's `__init__.py` it is the package."""
    path: str
    """Below the top package, such as `tools/cli/run.py`."""
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The folder below the top package or a layer, such as `base/lib`; empty for the top package's own modules."""
        folders = self.path.split("/")[:-1]
        return "/".join(folders[: 2 if self.layer else 1])

    @property
    def layer(self) -> str:
        """One of LAYERS, or empty."""
        folder = self.path.partition("/")[0]
        return folder if folder in LAYERS else ""

    @property
    def is_init(self) -> bool:
        return self.path.endswith("__init__.py")

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())


def read_modules(top: Path) -> tuple[Module, ...]:
    """All modules of the package in the folder `top`, by path. Raises SyntaxError."""
    modules = []
    for path in sorted(top.rglob("*.py")):
        parts = path.relative_to(top.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        modules.append(Module(name, path.relative_to(top).as_posix(), text, ast.parse(text, str(path))))
    return tuple(modules)


def statements(tree: ast.AST, scope: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Every statement below `tree`, each with the qualified name of the class or function that it stands in."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt):
            yield scope, node
        elif not isinstance(node, (ast.ExceptHandler, ast.match_case)):
            continue  # an expression has no statements
        yield from statements(node, qualified_name(scope, node))


def functions(tree: ast.AST) -> Iterator[tuple[str, FunctionNode]]:
    """Every function with its qualified name: methods and nested functions, too."""
    for scope, node in statements(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield qualified_name(scope, node), node


def qualified_name(scope: str, node: ast.AST) -> str:
    """Of a class or function in `scope`; `scope` itself for other nodes."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return scope
    return f"{scope}.{node.name}" if scope else node.name


def imported_names(node: ast.AST) -> Iterator[str]:
    """What is imported at run time, at module level and inside functions; `from a import b` is both a and a.b.

    Blocks of TYPE_CHECKING are left out.
    """
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        for statement in node.orelse:
            yield from imported_names(statement)
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        if node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif not isinstance(node, ast.expr):
        for child in ast.iter_child_nodes(node):
            yield from imported_names(child)


def import_closure(modules: Iterable[Module], *roots: str) -> tuple[Module, ...]:
    """`roots` and what they pull in: all that a module imports by `imported_names`, and the packages above each module.

    Nothing is executed: what a command imports by a computed name is no part of it.
    """
    by_name = {module.name: module for module in modules}
    names, waiting = set[str](), [*roots]
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in names:
            names.add(name)
            waiting.extend(imported_names(by_name[name].tree))
            waiting.append(name.rpartition(".")[0])
    return tuple(by_name[name] for name in sorted(names))
