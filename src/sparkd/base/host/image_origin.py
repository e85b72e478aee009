"""What an image was built from, where sparkd has built it: a label of the image."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import zip_longest

from msgspec import MsgspecError, Struct
from msgspec.json import decode

from sparkd.base.host.docker import LABEL
from sparkd.base.host.docker_image import list_names, split_name
from sparkd.base.lib import prepared
from sparkd.base.lib.dockerd.reader import DockerReader
from sparkd.base.lib.text import sanitize

BUILT = f"{LABEL}build"
"""Label of an image that `sparkd image build` has made: a `BuiltFrom` as JSON."""


class BuiltFrom(Struct, frozen=True):
    """What went into an image. When it was built is the image's own date."""

    base: str
    base_id: str
    steps: tuple[tuple[str, str], ...]
    """Each step's text, and a SHA-256 of that text and of the files that the step copies."""

    def lines(self) -> tuple[str, ...]:
        """Lines for people, without the digests."""
        base = f"from {sanitize(self.base)} ({sanitize(self.base_id.removeprefix('sha256:')[:12])})"
        return base, *(sanitize(step) for step, _ in self.steps)

    def changes(self, before: BuiltFrom) -> Iterator[str]:
        """A line for each part that differs from an earlier build."""
        parts = zip_longest((self.base_id, *self.steps), (before.base_id, *before.steps))
        lines = zip_longest(self.lines(), before.lines(), fillvalue="nothing")
        for number, ((part, old_part), (line, old_line)) in enumerate(zip(parts, lines, strict=True)):
            if part != old_part:
                change = "with other files" if line == old_line else old_line
                yield f"{f'step {number}' if number else 'the base'}: {line}; before: {change}"


def read_built(docker: DockerReader, ref: str) -> BuiltFrom | None:
    """None where there is no such image, or sparkd has not built it. Raises DockerError."""
    match docker.image(ref):
        case {"Config": {"Labels": dict() as labels}} if len(text := str(labels.get(BUILT))) <= 64 << 10:
            with suppress(MsgspecError, RecursionError):
                built = decode(text, type=prepared(BuiltFrom))
                # As many steps as a recipe may have: a label that sparkd did not write may have thousands.
                return built if len(built.steps) <= 64 else None
    return None


def find_built(docker: DockerReader, ref: str) -> tuple[str, BuiltFrom | None]:
    """Name and origin of the image that was built before: of the same name, else the newest one of its repository,
    since an import names an image by its content. Raises DockerError.
    """
    repository = split_name(ref)[0]
    tags = [tag for tag in list_names(docker, "RepoTags") if split_name(tag)[0] == repository]
    origins = ((name, read_built(docker, name)) for name in (ref, *tags[:8]))
    return next(((name, built) for name, built in origins if built), ("", None))
