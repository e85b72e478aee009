"""Importing a library without its optional parts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Import in this block as if `packages` were not installed; those that are imported already stay.

    httpx imports its command line and structlog its tracebacks wherever click and rich are found: some 40 ms and 4 MiB
    that no agent has a use for. A None in sys.modules makes an import fail (the import system's reference, 5.3.1).
    """
    hidden = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None is what the import system looks for
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextmanager
def stub(module: str, *names: str) -> Iterator[None]:
    """Import in this block a package that imports `names` of its own `module` and that does not need them here.

    uvicorn imports its command line, with click and multiprocessing: 10 ms and 1.6 MiB that no agent has a use for.
    """
    if module in sys.modules:
        yield
        return
    sys.modules[module] = ModuleType(module)
    sys.modules[module].__dict__.update(dict.fromkeys(names))
    try:
        yield
    finally:
        del sys.modules[module]
