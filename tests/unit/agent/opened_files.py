"""What the main thread opens or lists: a disk or a file server that hangs would hang it, too."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def opened_by_main_thread() -> Iterator[list[str]]:
    """Paths that the main thread opens or lists meanwhile."""
    opened, watching = list[str](), threading.Event()

    def watch(event: str, args: tuple[object, ...]) -> None:
        is_look = event in ("open", "os.listdir", "os.scandir")
        if is_look and watching.is_set() and threading.current_thread() is threading.main_thread():
            opened.append(str(args[0]))

    sys.addaudithook(watch)
    watching.set()
    try:
        yield opened
    finally:
        watching.clear()
