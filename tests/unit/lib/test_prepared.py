"""Types that several threads decode at once, the first time too."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import sparkd

SOURCE = Path(sparkd.__file__).parent
RACE = """
import resource, sys, threading, types
import msgspec
from sparkd.base.lib import prepared
TYPES = '''
from __future__ import annotations
import msgspec
class Leaf(msgspec.Struct):
    number: int = 0
    text: str = ""
class Node(msgspec.Struct, frozen=True):
    leaf: Leaf | None = None
    leaves: tuple[Leaf, ...] = ()
    links: tuple[Link, ...] = ()
class Link(msgspec.Struct):
    node: Node | None = None
'''
LEAF = {"number": 1, "text": "x"}
NODE = {"leaf": LEAF, "leaves": [LEAF], "links": [{"node": {"leaf": LEAF}}]}
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
sys.setswitchinterval(1e-6)
errors = []
threading.excepthook = errors.append
for number in range(300):
    made = types.ModuleType(f"made{number}")
    sys.modules[made.__name__] = made
    exec(TYPES, made.__dict__)
    start = threading.Barrier(3)
    def run(fields, kind):
        start.wait()
        msgspec.convert(fields, prepared(kind))
    work = ((NODE, made.Node), (NODE, made.Node), ({"node": NODE}, made.Link))
    threads = [threading.Thread(target=run, args=arguments) for arguments in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
sys.exit(str(errors) if errors else 0)
"""


def test_threads_that_are_the_first_to_decode_a_type_at_once_get_it_whole() -> None:
    """With `kind` in place of `prepared(kind)` msgspec 0.22 ends it by SIGSEGV. Once it does not, `prepared` can go."""
    ended = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, cwd=SOURCE.parent, check=False)
    assert ended.returncode == 0, ended.stderr


def decoders(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls in functions that may name a type for msgspec."""
    for function in ast.walk(tree):
        for node in ast.walk(function) if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("decode", "convert", "Decoder")):
                yield node


def test_each_type_that_a_function_decodes_is_prepared() -> None:
    prepared, others = 0, set()
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        if "msgspec" not in text or path == SOURCE / "base/lib/__init__.py":
            continue
        for call in decoders(ast.parse(text)):
            name, kinds = ast.unparse(call.func), [keyword.value for keyword in call.keywords if keyword.arg == "type"]
            kinds += call.args[1:2] if name in ("msgspec.convert", "convert") else ()
            kinds += call.args[:1] if name.endswith("Decoder") else ()
            for kind in map(ast.unparse, kinds):
                prepared += kind.startswith("prepared(")
                if not kind.startswith("prepared("):
                    others.add(kind)
    assert prepared > 15
    assert others == {"dict[_Text, _Text]", "dict[str, msgspec.Raw]", "tuple[int, str, str]"}, "which have no Struct"
