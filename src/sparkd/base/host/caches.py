"""Compile caches of images: the size of their folders, counted up to a bound.

The folder of an image has one folder for each cache of this node's own plans, and the folder HEAD for those of the
plans that this node takes from its head.
"""

# os, not pathlib: a compile cache has tens of thousands of files.

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime

from msgspec import Struct

from sparkd.base.host.files import Files, Kind
from sparkd.base.lib.text import size

ROOT = "/var/lib/sparkd/cache"
MOST_ENTRIES = 20_000
"""The most files and folders that are counted in one cache; the rest is left out."""
MOST_SEARCHED = 10 * MOST_ENTRIES
"""The most files and folders that a search for kernels visits: one of Triton's kernels has some ten files."""
KERNELS = (".so", ".o", ".cubin", ".ptx", ".hsaco")
"""Endings of the files that FlashInfer, Triton, TileLang, inductor, DeepGEMM and CuTe DSL write for each kernel."""

NINJA = "build.ninja"

IMAGE = re.compile(r"[0-9a-f]{64}")
HEAD = "_head"
"""The folder of the caches of a head's plans, which no plan of this node's own loads. No recipe can use the name."""


class Folder(Struct, frozen=True):
    path: str
    kind: str
    """"folder", "missing", or the kind of what is there instead."""
    files: int = 0
    bytes: int = 0
    whole: bool = True
    """Whether all of it was counted."""
    uid: int = 0
    writable_by_others: bool = False

    @property
    def name(self) -> str:
        """The cache's name in the folder of its image."""
        return self.path.removeprefix(f"{ROOT}/").partition("/")[2]

    @property
    def empty(self) -> bool:
        return self.kind == "folder" and self.whole and not self.files


def path(image_id: str, name: str) -> str:
    return f"{ROOT}/{image_id.removeprefix('sha256:')}/{name}"


def count_folder(files: Files, path: str, most: int = MOST_ENTRIES) -> Folder:
    """The cache at `path`, counted up to `most` entries. Raises OSError where the folder can't be read."""
    try:
        facts = files.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        return Folder(path, "missing" if isinstance(error, FileNotFoundError) else "something else")
    except PermissionError:  # for a user who is not root
        return Folder(path, "folder", whole=False)
    if facts.kind is not Kind.FOLDER:
        return Folder(path, facts.kind.value)
    sizes, cut_paths = list[int](), list[str]()
    for file in walk_files(files.real(path), most, cut_paths.append):
        try:
            sizes.append(file.stat(follow_symlinks=False).st_size)
        except FileNotFoundError:  # removed meanwhile
            continue
        except OSError:
            cut_paths.append(file.path)
    return Folder(path, "folder", len(sizes), sum(sizes), not cut_paths, facts.uid, bool(facts.permissions & 0o002))


def count_others(files: Files, image_id: str) -> tuple[Folder, ...]:
    """The folders of all other images, which share one bound on what is counted."""
    own_id, entries_left = image_id.removeprefix("sha256:"), MOST_ENTRIES
    folders = []
    for name in files.names_if_any(ROOT):
        if IMAGE.fullmatch(name) and name != own_id:
            folders.append(count_folder(files, f"{ROOT}/{name}", entries_left))
            entries_left = max(0, entries_left - folders[-1].files)
    return tuple(folders)


def describe_all(files: Files) -> str:
    """A line for each cache of each image, with its size and age. Raises OSError."""
    lines = []
    for image in (f"{ROOT}/{name}" for name in files.names_if_any(ROOT) if IMAGE.fullmatch(name)):
        for cache in (count_folder(files, f"{image}/{name}") for name in files.names_if_any(image)):
            newest = max(map(_read_change_time, walk_files(files.real(cache.path))), default=0.0)
            age = f", the newest of {datetime.fromtimestamp(newest, UTC):%Y-%m-%d %H:%M} UTC" if newest else ""
            counted = f"files: {cache.files:,}{'' if cache.whole else ' and more'}, {size(cache.bytes)}"
            lines.append(f"{cache.path}: {cache.kind}, {counted}{age}\n")
    return "".join(lines)


def count_kernels(files: Files, image_id: str, names: Iterable[str]) -> int:
    """Files of kernels in an image's caches, as far as they are counted. Raises OSError."""
    tops = (files.real(path(image_id, name)) for name in names)
    return sum(file.name.endswith(KERNELS) for top in tops for file in walk_files(top))


def count_objects(files: Files, image_id: str, names: Iterable[str]) -> tuple[int, int]:
    """Object files of FlashInfer's builds that are not linked yet: the number that exists, and the number needed.

    Each build has a folder with the list of its steps, of which the last one links (flashinfer/jit/cpp_ext.py). Raises
    OSError, ValueError.
    """
    cache_name = next((name for name in names if name.rpartition("/")[2] == "flashinfer"), "")
    if not cache_name:
        return 0, 0
    cache_path = path(image_id, cache_name)
    real_path, builds = files.real(cache_path), dict[str, list[str]]()
    for file in walk_files(real_path):
        if file.name == NINJA or file.name.endswith((".o", ".so")):
            builds.setdefault(file.path.rpartition("/")[0], []).append(file.name)
    built, needed = 0, 0
    for build, outputs in builds.items():
        if NINJA in outputs and f"{build.rpartition('/')[2]}.so" not in outputs:
            ninja_text = files.itself(f"{cache_path}{build[len(real_path) :]}/{NINJA}", 4 << 20).content
            needed += max(0, ninja_text.count(b"\nbuild ") - 1)
            built += sum(name.endswith(".o") for name in outputs)
    return min(built, needed), needed


def walk_files(
    top: str, most: int = MOST_SEARCHED, cut: Callable[[str], object] = lambda _: None
) -> Iterator[os.DirEntry[str]]:
    """Everything below `top` except folders, up to `most` entries. Links are not followed.

    `cut` gets the folder at which the bound was reached, and each that can't be read: a cache never blocks a start.
    """
    folders, count = [top], 0
    while folders:
        current = folders.pop()
        try:
            with os.scandir(current) as children:
                for child in children:
                    count += 1
                    if count > most:
                        cut(current)
                        return
                    if child.is_dir(follow_symlinks=False):
                        folders.append(child.path)
                    else:
                        yield child
        except FileNotFoundError:  # removed meanwhile
            continue
        except OSError:
            cut(current)


def _read_change_time(file: os.DirEntry[str]) -> float:
    """Time of its last change; 0 where it was removed meanwhile."""
    with suppress(OSError):
        return file.stat(follow_symlinks=False).st_mtime
    return 0.0
