"""What kind each line of a module is, and its words and tokens.

Each line has one kind, the first that holds; the kinds sum up to the total:

- blank: nothing but white space, also inside a string;
- comments: nothing but a comment;
- docstrings: of statements that are one string: below a module, class, function, field or constant;
- imports: of import statements, anywhere;
- data: of module-level assignments whose value is a tuple, list, set or dict written out, also inside a call of one of
  COLLECTIONS, or joined with others by an operator. A collection of one line counts as well;
- code: all others.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

from tests.count.source import Module, statements

COLLECTIONS = {"tuple", "list", "set", "dict", "frozenset", "MappingProxyType"}
LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


class Lines(NamedTuple):
    total: int = 0
    code: int = 0
    blank: int = 0
    imports: int = 0
    docstrings: int = 0
    comments: int = 0
    data: int = 0

    def plus(self, other: Lines) -> Lines:
        return Lines(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def count_lines(module: Module) -> Lines:
    texts = module.text.splitlines()
    kinds = ["code"] * len(texts)
    spans: list[tuple[str, ast.stmt]] = [
        *(("data", node) for node in module.tree.body if _is_data(node)),
        *(("imports", node) for _, node in statements(module.tree) if isinstance(node, (ast.Import, ast.ImportFrom))),
        *(("docstrings", node) for node, _ in _docstrings(module.tree)),
    ]
    for kind, node in spans:
        for number in _numbers(node):
            kinds[number - 1] = kind
    for token in _tokens(module.text):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            kinds[token.start[0] - 1] = "comments"
    for index, text in enumerate(texts):
        if not text.strip():
            kinds[index] = "blank"
    return Lines(len(texts), *(kinds.count(kind) for kind in Lines._fields[1:]))


def count_docstring_words(module: Module) -> int:
    """Words between white space in all docstrings, as `count_lines` has them."""
    return sum(len(text.split()) for _, text in _docstrings(module.tree))


def count_code_tokens(module: Module) -> int:
    """Tokens without docstrings, comments, line ends and indentation.

    An f-string is one token, as up to Python 3.11: later versions split it.
    """
    docstrings = {number for node, _ in _docstrings(module.tree) for number in _numbers(node)}
    count = depth = 0
    for token in _tokens(module.text):
        name = tokenize.tok_name[token.type]
        if token.type in LAYOUT or token.start[0] in docstrings:
            continue
        depth -= name.endswith("STRING_END")
        count += not depth and not name.endswith("STRING_START")
        depth += name.endswith("STRING_START")
    return count


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(text).readline)


def _docstrings(tree: ast.Module) -> Iterator[tuple[ast.Expr, str]]:
    for _, node in statements(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node, node.value.value


def _numbers(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _is_data(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    return value is not None and _written(value)


def _written(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp):
        return _written(value.left) or _written(value.right)
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in COLLECTIONS:
        return any(_written(argument) for argument in value.args)
    return isinstance(value, (ast.Tuple, ast.List, ast.Set, ast.Dict))
