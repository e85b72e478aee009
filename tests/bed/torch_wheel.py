"""Which wheel of PyTorch the engine's image gets: the one for the CPU, or the ordinary one where pip finds no other.

The engine runs with either. Only PyTorch's own index has the first, and the second brings the libraries of CUDA.
"""

import re
from collections.abc import Callable
from pathlib import Path

from .cache import say
from .command import BedError

CPU, ORDINARY = "torch==2.13.0+cpu", "torch==2.13.0"
INSTEAD = (
    f"pip finds no {CPU} (0.2 GB): taking {ORDINARY}, with the libraries of CUDA 2.7 GB, which takes minutes longer. "
    "For the small one, set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels"
)
"""2,741 MB in 29 wheels (measured)."""
_KNOWN = re.compile(r"\(from versions: (?!none\))")


def choose(pip: Callable[..., str], folder: Path, seen_as: str) -> str:
    """The requirement to install. `pip` sees `folder` as `seen_as`; a wheel for the CPU is downloaded into it.

    Raises BedError, also where pip finds no PyTorch at all: then no index answers.
    """
    try:
        pip("download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", seen_as, CPU)
    except BedError as error:
        if not _KNOWN.search(str(error)):
            raise
        say(INSTEAD)
        return ORDINARY
    (wheel,) = folder.glob("torch-*.whl")
    return f"{seen_as}/{wheel.name}"
