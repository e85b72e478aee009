"""What a launch executes in an image, and what the image's builder has noted in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from sparkd.host import image_files
from sparkd.lib.text import sanitize

if TYPE_CHECKING:
    from sparkd.host.files import Files
    from sparkd.host.image_files import Stored
    from sparkd.launch.plan import LaunchPlan

SHELL = "/bin/bash"
"""What runs the launch script."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where docker has a container look that is told nothing else."""
OF_THE_KERNEL = ("/proc", "/sys", "/dev")
METADATA = "/workspace/build-metadata.yaml"
"""What eugr's spark-vllm-docker notes in each image of which sources it is made."""
METADATA_BYTES = 64 << 10
MOST_LINES = 40
_SAYS = re.compile(r"\s*[\w.-]{1,60}:\s*\S")


class Launched(Struct, frozen=True):
    """What a launch needs of the image."""

    programs: tuple[str, ...]
    """That the launch script executes: each a path, or a name that is looked for in `path`."""
    path: str
    """PATH as the plan sets it; empty where it does not."""
    mounted: tuple[str, ...]
    """Folders and files of the container that are not the image's."""


class Inside(Struct, frozen=True):
    wrong: tuple[str, ...]
    """What a launch executes and the image lacks."""
    metadata: tuple[str, ...]
    """Lines of the builder's note."""


def launched(plan: LaunchPlan) -> Launched:
    targets = (
        *(one.target.rstrip("/") for one in plan.container.mounts),
        *(one.target.rstrip("/") for one in plan.caches),
    )
    programs = (*(("ray",) if plan.on_ray else ()), plan.argv[0])
    return Launched(programs, dict(plan.env).get("PATH", ""), (*targets, *OF_THE_KERNEL))


def look(files: Files, image: Stored, wanted: Launched) -> Inside:
    """Raises OSError where the layers can't be read, or one of them is not to be seen here."""
    for layer in image.layers:
        files.names(layer)
    seen = _Image(files, image.layers, wanted.mounted)
    folders = (wanted.path or image.path or PATH).split(":")
    wrong = (seen.lacks(SHELL), *(seen.lacks_program(program, folders) for program in wanted.programs))
    return Inside(tuple(one for one in wrong if one), seen.metadata())


class _Image(Struct, frozen=True):
    files: Files
    layers: tuple[str, ...]
    mounted: tuple[str, ...]

    def lacks_program(self, name: str, folders: list[str]) -> str:
        if "/" in name:
            return self.lacks(name)
        # A part of PATH that is empty is the working directory.
        if all(folder and self.lacks(f"{folder}/{name}") for folder in folders):
            return f"has no {sanitize(name)} in {sanitize(':'.join(folders))}"
        return ""

    def lacks(self, path: str) -> str:
        """What is wrong with a program; empty where nothing is, or that is no matter of the image alone."""
        if not path.startswith("/"):  # from the working directory, which the engine's own script may change
            return ""
        try:
            found = image_files.find(self.files, self.layers, path, self.mounted)
        except image_files.ElsewhereError:
            return ""
        if found is None:
            return f"has no {sanitize(path)}"
        return "" if self.files.stat(found).executable else f"has a {sanitize(path)} that is not executable"

    def metadata(self) -> tuple[str, ...]:
        try:
            found = image_files.find(self.files, self.layers, METADATA)
            text = self.files.itself(found, METADATA_BYTES).content.decode("utf-8", "replace") if found else ""
        except OSError:  # a note is no reason to stop for
            return ()
        return tuple(sanitize(line.rstrip()) for line in text.splitlines() if _SAYS.match(line))[:MOST_LINES]
