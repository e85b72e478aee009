"""Shared by all packages: errors, text, log, event loop, HTTP, dockerd, systemd; nothing of vLLM or a Spark.

Read errors.py first. `without` imports a library without its extras. Recipes, unit templates, tables and texts are data
of the package in a checkout, a wheel and the .deb; the .deb keeps them in /usr/share/sparkd.
"""

from __future__ import annotations

import errno
import sys
from _thread import allocate_lock
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import threading
    from pathlib import Path

T = TypeVar("T")
REINSTALL = (
    "sudo apt install --reinstall sparkd; of a file, not a repository: sudo apt install --reinstall ./sparkd_*.deb"
)
"""Both ways to install: where no repository has the package, apt only says so, and ends with 0."""
_preparing = allocate_lock()
_prepared: set[object] = set()


@contextmanager
def without(*modules: str, stand_in: object = None) -> Iterator[None]:
    """Import in this block as if `modules` were not installed, or were `stand_in`; those imported already stay.

    httpx and uvicorn import their command lines, structlog its tracebacks: some 50 ms and 6 MiB that no agent needs.
    A None in sys.modules makes an import fail (the import system's reference, 5.3.1).
    """
    hidden = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden, stand_in))  # type: ignore[arg-type]  # the import system takes any object
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def without_pydantic_extras() -> AbstractContextManager[None]:
    """Import pydantic_settings in this block without asyncio, which it needs for commands of its own (40 ms), and
    without pydantic's search for plugins (20 ms), of which there are none.
    """
    return without("asyncio", "importlib.metadata", stand_in=SimpleNamespace(entry_points=lambda **_: ()))


def recipes_dir() -> Path:
    """Folder of the shipped recipes, resolved, so that people see the path in /usr/share."""
    return _data_path("recipes").resolve()


def units_dir() -> Path:
    """Folder of the unit templates."""
    return _data_path("units").resolve()


def read_data(name: str) -> bytes:
    """A table or text of the package. Raises OSError where the installation lacks it."""
    return _data_path(name).read_bytes()


def _data_path(name: str) -> Path:
    from pathlib import Path

    return Path(__file__).parents[2] / "data" / name  # importlib.resources takes 10 ms to import


def start_thread(thread: threading.Thread) -> None:
    """Raises BlockingIOError (EAGAIN) where the machine has no room for one more now, as with too many processes."""
    try:
        thread.start()
    except RuntimeError as error:
        raise BlockingIOError(errno.EAGAIN, str(error)) from None


def prepared(kind: type[T]) -> type[T]:
    """Build msgspec's table of a type under a lock: two threads at a type's first use crash msgspec 0.22.

    Returns the type, for a decoder that a function makes. One that a module makes at its import needs none: the
    import has a lock.
    """
    if kind not in _prepared:
        from msgspec.json import Decoder

        with _preparing:
            Decoder(kind)
            _prepared.add(kind)
    return kind
