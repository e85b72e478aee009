"""Runs in the node: CPU seconds that the agent's imports take in a fresh interpreter.

imported.py RUNS     one line of JSON for each run: seconds, modules
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

FIRST = "sparkd.tools.cli.run"
TIMED = """
import sys, time
sys.path[:0] = {paths!r}
from importlib import import_module
began = time.process_time()
for name in {names!r}:
    import_module(name)
print(time.process_time() - began, len(sys.modules))
"""


def reached(first: str) -> list[str]:
    """Modules that `first` imports, at the top or in a function, directly or through other modules of sparkd."""
    modules, waiting = [first], [first]
    while waiting:
        spec = find_spec(waiting.pop())
        if spec is None or spec.origin is None or not spec.name.startswith("sparkd"):
            continue
        for name in imports(ast.parse(Path(spec.origin).read_text())):
            if name not in modules:
                modules.append(name)
                waiting.append(name)
    return modules


def imports(node: ast.AST) -> Iterator[str]:
    """Names of modules that an import statement below `node` names, except those under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (one.name for one in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and child.module != "__future__":
            yield child.module
            if child.module.startswith("sparkd"):
                names = (f"{child.module}.{one.name}" for one in child.names)
                yield from (name for name in names if _is_module(name))
        yield from imports(child)


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is a module and no package
        return False


def main(runs: int) -> None:
    code = TIMED.format(paths=os.environ["PYTHONPATH"].split(":"), names=reached(FIRST))
    for _ in range(runs):
        done = subprocess.run([sys.executable, "-IBS", "-c", code], capture_output=True, text=True, check=True)
        seconds, modules = done.stdout.split()
        print(json.dumps({"seconds": float(seconds), "modules": int(modules)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
