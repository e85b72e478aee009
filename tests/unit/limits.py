"""What this process may have no more of for a while, files and threads, and the memory that it takes meanwhile."""

import os
import resource
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """This process can open so many files more at once: one more is EMFILE."""
    free = [os.open("/dev/null", os.O_RDONLY) for _ in range(count + 1)]
    for fd in free:
        os.close(fd)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def no_more_threads() -> Iterator[None]:
    """This process can start no thread: its stack would be larger than the machine."""
    before = threading.stack_size(1 << 46)
    try:
        yield
    finally:
        threading.stack_size(before)


@contextmanager
def peak_bytes() -> Iterator[Callable[[], int]]:
    """The most memory that all threads together have had since the start, beyond what there was."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
