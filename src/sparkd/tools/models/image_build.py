"""A recipe's image, built on this node: its sources are read and shown before the build, and the image is checked."""

import io
import re
import tarfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from msgspec import Struct
from msgspec.json import encode

from sparkd.agent.actions import image_builder
from sparkd.agent.actions.images import image_name
from sparkd.base.config.settings import Memory
from sparkd.base.host import Host, docker
from sparkd.base.host.disks import Room, read_rooms
from sparkd.base.host.docker_image import Image, read_image
from sparkd.base.host.image_origin import BUILT, BuiltFrom, find_built
from sparkd.base.host.ownership import refuse_writable
from sparkd.base.lib import recipes_dir
from sparkd.base.lib.dockerd.reader import DockerError, DockerReader
from sparkd.base.lib.errors import BlockedError, ConfigError, LaunchError, UsageError
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.text import GIB, MIB, counted, printable, sanitize, size
from sparkd.base.plan.image_asserts import ASSERT_FAILED, find_fault, render_asserts
from sparkd.base.recipes.image import MOST_BYTES, MOST_FILES, Build, Step
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import recipe_folders
from sparkd.base.recipes.schema import Recipe
from sparkd.base.status.model import Phase, read_living_report
from sparkd.tools.models.image_store import find_store, read_sizes
from sparkd.tools.models.peers import require_room

_LEAST_MEMORY_BYTES = 2 * GIB
"""The least for a step. A choice: with less, one compiler of a GPU's kernels does not run next to pip."""
_STOP = "sudo systemctl stop sparkd-head sparkd-worker"
_KILLED = re.compile(r"non-zero code: 137\b|\bKilled\b|\bOut of memory\b|\bMemoryError\b")
_FULL = re.compile("no space left on device", re.IGNORECASE)
_STEP = re.compile(r"Step (\d{1,3})/(\d{1,3}) : ")


class CopiedFile(Struct, frozen=True):
    """A file that a step copies into the image."""

    content: bytes
    executable: bool


class Sources(Struct, frozen=True):
    """A recipe's build with the files that it copies, read once."""

    recipe: Recipe
    build: Build
    files: tuple[Mapping[str, CopiedFile], ...]
    """Files of each step, by their path below the recipe's folder."""

    def built_from(self, base: Image) -> BuiltFrom:
        """The origin of the image, for its label: the base, and each step with the digest of its text and files."""
        steps = []
        for step, files in zip(self.build.steps, self.files, strict=True):
            digest = sha256(step.instruction().encode())
            for name, file in files.items():
                digest.update(f"\0{name}\0{file.executable}\0{len(file.content)}\0".encode() + file.content)
            steps.append((_format_title(step), digest.hexdigest()))
        return BuiltFrom(self.build.base, base.id, tuple(steps))

    def archive(self, base: Image) -> bytes:
        """The build context: the Dockerfile, and the files that the recipe names. Owners and times are left out."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
            files = {name: file for copied in self.files for name, file in copied.items()}
            dockerfile = CopiedFile(self.build.dockerfile(base.id).encode(), executable=False)
            for name, file in {**files, image_builder.DOCKERFILE: dockerfile}.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(file.content), 0o755 if file.executable else 0o644
                tar.addfile(member, io.BytesIO(file.content))
        return packed.getvalue()

    def describe(self) -> Iterator[str]:
        """Lines for the person who confirms the build: the base, and all steps in full."""
        note = "" if "@" in self.build.base else "   (not pinned: a tag that may move)"
        yield f"{self.recipe.image.ref} is built by this node's docker, as root and with access to the network,"
        yield f"from {self.build.base}{note}:"
        for number, (step, files) in enumerate(zip(self.build.steps, self.files, strict=True), 1):
            first, *more = str(step).splitlines()
            count = f" ({counted(len(files), 'file')})" if files else ""
            yield printable(f"{number:>3}  {first}{count}")
            yield from (printable(f"     {line}") for line in more)


class CopyBudget(Struct):
    """Files and bytes that a build may still copy."""

    files: int = MOST_FILES
    bytes: int = MOST_BYTES


def read_sources(word: str, host: Host) -> Sources:
    """Read the sources of a recipe. `word`: its name or absolute path. Raises ConfigError, UsageError, AwaitedError."""
    loaded = load_recipe(word, recipe_folders(Path(host.files.root)))
    recipe, build = loaded.recipe, loaded.recipe.image.build
    if not isinstance(build, Build):
        by_hand = f"by hand: {sanitize(build, 400)}" if build else f"sudo docker pull {recipe.image.ref}"
        raise UsageError(f"recipe {recipe.name} has no image.build with steps", by_hand)
    for path in loaded.files:
        if path.parent != recipes_dir():
            refuse_writable(host.files, str(path), "recipe")
    folder = loaded.origins["image.build"].path.parent
    budget = CopyBudget()
    files = (dict(_read_files(folder, step.file, budget, host)) if step.file else {} for step in build.steps)
    return Sources(recipe, build, tuple(files))


def _read_files(folder: Path, name: str, budget: CopyBudget, host: Host) -> Iterator[tuple[str, CopiedFile]]:
    """The file of that name, or all files below the folder of that name, each with its path below `folder`.

    Takes them from `budget`. Raises ConfigError; AwaitedError where others than root may change a file, which has to
    stay as the person who confirms the build sees it.
    """
    try:
        if (folder / name).resolve(strict=True) != folder.resolve() / name:
            raise ConfigError(f"{folder / name}: a link is on the way to it", "a build copies files, not links")
        for path in sorted([folder / name, *(folder / name).rglob("*")]):
            refuse_writable(host.files, str(path), "file")
            if path.is_dir() and not path.is_symlink():
                continue
            inside = str(path.relative_to(folder))
            if not path.is_file() or path.is_symlink() or not inside.isprintable():
                raise ConfigError(f"{sanitize(str(path))} is a link, no file, or has an odd name", "leave it out")
            budget.files -= 1
            if budget.files < 0:
                raise ConfigError(f"{folder / name}: more than {MOST_FILES} files to copy", "git is for more")
            opened = host.files.itself(str(path), budget.bytes)
            budget.bytes -= len(opened.content)
            yield inside, CopiedFile(opened.content, bool(opened.facts.permissions & 0o100))
    except OSError as error:
        reason = f"{sanitize(str(error.filename or folder / name))}: {(error.strerror or str(error)).lower()}"
        raise ConfigError(f"{reason} (at most {size(MOST_BYTES)} are copied)", f"ls -l {quote(str(folder))}") from None


def _format_title(step: Step) -> str:
    """The step on one line, for the image's label and for progress."""
    return sanitize(" ".join(str(step).split()), 160)


class BuildImages(NamedTuple):
    """Images of this node that a build begins with or replaces, and the room for it."""

    base: Image
    replaced_id: str
    """Id of the image that has the name now; empty where none has."""
    built_name: str
    """Name of the image that was built before, as `find_built` finds it; empty where none was."""
    built_from: BuiltFrom | None
    """What the image `built_name` was built from."""
    room: Room
    """At docker's folder."""


def find_images(sources: Sources, host: Host) -> BuildImages:
    """Find the images that a build depends on.

    Raises BlockedError, also where there is less room than half of the unpacked base: compilers' files and a second
    torch may take that.
    """
    base, ref = sources.build.base, sources.recipe.image.ref

    def read_images(reader: DockerReader) -> BuildImages:
        if (base_image := read_image(reader, base)) is None:
            raise BlockedError(f"image {base}, which it is made from, is not on this node", f"sudo docker pull {base}")
        named_image, built = read_image(reader, ref), find_built(reader, ref)
        (room,) = read_rooms(host, (find_store(reader.info()).folder,))
        needed_bytes = read_sizes(reader, base_image).unpacked_bytes // 2
        require_room(room, needed_bytes, f" to build from {base}", "; sudo docker system df", None)
        return BuildImages(base_image, named_image.id if named_image else "", *built, room)

    try:
        build_images = docker.query(host, read_images)
    except DockerError as error:
        raise BlockedError(f"docker does not answer: {sanitize(str(error))}", "systemctl status docker") from None
    if build_images is None:
        raise BlockedError("docker is not running on this node", "sudo systemctl start docker")
    return build_images


def find_memory(host: Host, memory: Memory) -> int:
    """Bytes that a step may have: the available memory, without a launch's headroom and the memory guard's floor.

    CPU and GPU share the memory: with a compiler without a limit, the guard or the kernel would end an engine that
    serves. Raises BlockedError, also while an engine loads: the memory that it will take is still available then.
    """
    available_bytes, report = host.meminfo().available_bytes, read_living_report(host.files)
    if report is not None and report.phase in (Phase.LAUNCHING, Phase.LOADING):
        hint = f"wait until sparkd status says serving; or: {_STOP}"
        raise BlockedError("an engine is loading, which takes its memory only now", hint)
    kept_bytes = round(memory.headroom_gib * GIB) + memory.floor_mib * MIB
    needed_bytes = kept_bytes + _LEAST_MEMORY_BYTES
    if available_bytes < needed_bytes:
        reason = f"{size(available_bytes)} of memory available, {size(needed_bytes)} needed to build"
        raise BlockedError(reason, f"see what has it: sparkd preflight --dry-run; an engine: {_STOP}")
    return available_bytes - kept_bytes


def build(sources: Sources, base: Image, memory_bytes: int, *, cached: bool, show: Callable[[str], None]) -> str:
    """Build the image, and return its full id; it has no name yet.

    Raises BlockedError with the last lines of the step that failed.
    """
    # docker has two steps more: FROM before the recipe's steps, LABEL after them.
    titles, number = ("", *map(_format_title, sources.build.steps), ""), -1
    labels = {BUILT: encode(sources.built_from(base)).decode()}
    lines = image_builder.build(sources.archive(base), labels, memory_bytes, cached=cached)
    last_lines = deque[str](maxlen=20)
    try:
        while True:
            line = next(lines)
            step_line = _STEP.match(line)
            # Other lines may look alike: the next step has the next number.
            if step_line and int(step_line[1]) == number + 2 <= len(titles) == int(step_line[2]):
                number += 1
                last_lines.clear()
                if titles[number]:
                    show(f"step {number} of {len(titles) - 2}: {titles[number]}")
            elif line.strip():
                last_lines.append(line)
    except StopIteration as build_end:
        return str(build_end.value)
    except DockerError as error:
        redact = Redaction()
        text = "\n".join(f"  {redact(printable(line))}" for line in last_lines)
        name = f"step {number} ({titles[number]})" if titles[number] else "the build"
        reason = redact(f"{name} failed: {sanitize(str(error), 400)}")
        hint = find_remedy(f"{text}\n{error}", memory_bytes)
        raise BlockedError(f"{text}\n{reason}".lstrip("\n"), f"{hint}; the image that has the name stays") from None


def find_remedy(output: str, memory_bytes: int) -> str:
    """What to do after a step that failed with this output."""
    if _KILLED.search(output):
        return f"it may have needed more than its {size(memory_bytes)} of memory: fewer compilers at once, or {_STOP}"
    return "correct the recipe's step"


@contextmanager
def explain_full_disk(room: Room, host: Host) -> Iterator[None]:
    """Name the file system that becomes full in a step, the check or the naming. `room`: its room before the build.

    Raises BlockedError. When the error comes, the step's files are removed already, and the shortage has ended. A step
    may also have filled a file system of its own, such as /dev/shm, which has 64 MiB there.
    """
    try:
        yield
    except (BlockedError, LaunchError) as error:
        if not _FULL.search(error.reason):
            raise
        room_now = ""
        with suppress(OSError, ValueError):
            room_now = "".join(f" ({size(rest.free_bytes)} is free now)" for rest in read_rooms(host, (room.path,)))
        free_text = f"unless a line above names another place: {size(room.free_bytes)} was free when it began{room_now}"
        remedy = "no image has got or lost a name: make room, and build again"
        reason = f"{error.reason}\nno space left on {room.mount}, where docker builds, {free_text}; {remedy}"
        raise BlockedError(reason, "sudo docker system df") from None


def check(sources: Sources, image: str) -> None:
    """Raises BlockedError where the image is not what the recipe asserts."""
    if not (program := render_asserts(sources.recipe.image.asserts)):
        return
    code, log = image_builder.check(image, program)
    if code:
        fault = Redaction()(sanitize(find_fault(log), 400))
        reason = "is not what the recipe needs" if code == ASSERT_FAILED else f"can't be checked (exit code {code})"
        command = f"sudo docker run --rm -it --entrypoint bash {image.removeprefix('sha256:')[:12]}"
        raise BlockedError(f"the new image {reason}: {fault}", f"it has no name; look into it: {command}")


def give_name(sources: Sources, image: str, old_id: str) -> Iterator[str]:
    """Name the image, and yield lines for the person who built it. `old_id`: id of the image that has the name.

    Raises BlockedError.
    """
    ref, replaced = sources.recipe.image.ref, old_id if old_id != image else ""
    try:
        image_builder.give_name(image, ref, replaced)
    except DockerError as error:
        raise BlockedError(f"docker names no image: {sanitize(str(error))}", "systemctl status docker") from None
    yield f"{ref} is built: {image.removeprefix('sha256:')[:12]}"
    if replaced:
        yield f"the image that had this name stays as {image_name(replaced)}; when nobody needs it:"
        yield f"sudo docker image rm {image_name(replaced)}"
