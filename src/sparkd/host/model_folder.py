"""A model's folder, looked at as its loader will: what it lacks, and which of its files are not whole."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from sparkd.host import safetensors
from sparkd.host.files import Files, Kind
from sparkd.host.weights import DECIDING, INDEX, WEIGHTS, leaves, read_index
from sparkd.lib.text import sanitize

SAFETENSORS = ".safetensors"
CONFIGS = ("config.json", "params.json")
"""Hugging Face's and Mistral's."""
CONFIG_LIMIT_BYTES = 4 << 20
INDICES = (f"model{SAFETENSORS}{INDEX}", f"consolidated{SAFETENSORS}{INDEX}")
"""The same. vLLM heeds no index of another name, and without one it loads every file."""
SNAPSHOT = re.compile(r"(.+)/snapshots/[^/]+")
"""A model in Hugging Face's cache: symlinks into the folder `blobs` beside `snapshots`."""
DOWNLOADS = ".cache/huggingface/download"
"""Where `hf download --local-dir` keeps what it has not finished."""

_TOKENIZERS = frozenset(("tokenizer.json", "tekken.json", "vocab.json", "vocab.txt"))
_SPARE = frozenset(("merges.txt", "vocab.json", "vocab.txt"))
"""Not opened where there is a tokenizer.json, which has all of it; some repositories keep them empty."""
_TOKENIZER_ENDS = (".model", ".tiktoken")
_TOKENIZER_CODE = re.compile(r"tokeniz\w*\.py")
_PARTIAL = re.compile(r".+\.(?:incomplete|part|partial|aria2|crdownload|tmp)|\..+\.(?:safetensors|bin|gguf)\.\w{6}")
"""By Hugging Face, browsers, aria2; the last is rsync's, while it copies."""
_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors", re.ASCII)
_MOST_NUMBERED = 10_000
_SHOWN_LENGTH = 120
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Flaw(Struct, frozen=True):
    """What is wrong with `count` files, of which `name` is the first."""

    name: str
    wrong: str
    count: int = 1
    unreadable: bool = False
    """It could not be looked at."""


class ModelFolder(Struct, frozen=True):
    there: bool
    """Whether there is a folder with something in it."""
    download_cache: str = ""
    """Where the folder holds no model but downloads of one: the newest, as a path below it."""
    config: bool = False
    tokenizer: bool = False
    format: str = ""
    """End of the weights' names; empty where there are none."""
    shards: int = 0
    size_bytes: int = 0
    indexed_bytes: int | None = None
    """Of all tensors, as the index says."""
    flaws: tuple[Flaw, ...] = ()
    partial: tuple[str, ...] = ()
    """Downloads that are under way, or were broken off."""
    opened: tuple[str, ...] = ()
    """Names that the loader will open."""


def look(files: Files, folder: str, *, shards: bool = True) -> ModelFolder:
    """Raises OSError where the folder itself can't be read. No tensor is read.

    Without `shards`, weights are told by their names alone: the loader reads them in another way.
    """
    try:
        names = files.names(folder)
    except OSError as error:
        if error.errno in _GONE:
            return ModelFolder(there=False)
        raise
    if not names:
        return ModelFolder(there=False)
    seen = _Look(files, folder, names)
    small = [seen.problem(name, seen.small) for name in names if name in DECIDING or name.endswith(_TOKENIZER_ENDS)]
    found = ModelFolder(
        there=True,
        download_cache=seen.download_cache(),
        config=any(name in names for name in CONFIGS),
        tokenizer=any(_is_tokenizer(name) for name in names),
        partial=seen.partial(),
    )
    found = seen.weights(found) if shards else seen.present(found)
    opened = (*(name for name in names if name in CONFIGS), *found.opened)
    return replace(found, opened=opened, flaws=_grouped((*(one for one in small if one), *found.flaws)))


def closed(files: Files, folder: str, found: ModelFolder) -> str:
    """The first of folder and files that not everybody may read; empty where all are open."""
    for path in (folder, *(f"{folder}/{name}" for name in found.opened)):
        with suppress(OSError):
            facts = files.stat(path)
            wanted = 0o005 if facts.kind is Kind.FOLDER else 0o004
            if facts.permissions & wanted != wanted:
                return _shown(path)
    return ""


class _Look:
    def __init__(self, files: Files, folder: str, names: tuple[str, ...]) -> None:
        self._files = files
        self._folder = folder
        self._names = names

    def problem(self, name: str, look: Callable[[str], str]) -> Flaw | None:
        try:
            wrong = look(name)
        except OSError as error:
            if error.errno in _GONE:
                return Flaw(name, "is missing" if name not in self._names else "is a link to nothing")
            return Flaw(name, f"can't be read: {error.strerror or type(error).__name__}", unreadable=True)
        return Flaw(name, wrong) if wrong else None

    def small(self, name: str) -> str:
        path = f"{self._folder}/{name}"
        facts = self._files.stat(path)
        if facts.kind is not Kind.FILE:
            return f"is a {facts.kind.value}, not a file"
        if not facts.size_bytes:
            return "" if name in _SPARE and "tokenizer.json" in self._names else "is empty"
        if self._files.head(path, len(safetensors.LFS_POINTER)) == safetensors.LFS_POINTER:
            return safetensors.POINTER
        return "" if name not in CONFIGS or self._is_table(path) else "is no JSON object"

    def _is_table(self, path: str) -> bool:
        with suppress(ValueError, RecursionError):
            return isinstance(json.loads(self._files.bytes(path, CONFIG_LIMIT_BYTES)), dict)
        return False

    def weights(self, found: ModelFolder) -> ModelFolder:
        """The first set of shards that is good; else what is wrong with the first of all."""
        loose = {name for name in self._names if name.endswith(SAFETENSORS)}
        looks = [partial(self._indexed, found, name) for name in INDICES if name in self._names]
        if loose and INDICES[0] not in self._names:
            looks.append(partial(self._shards, found, loose | _numbered(loose)))
        elif mistral := {name for name in loose if name.startswith("consolidated")}:
            looks.append(partial(self._shards, found, mistral))
        tried: list[ModelFolder] = []
        for one in looks:
            tried.append(one())
            if not tried[-1].flaws:
                return tried[-1]
        if tried:
            return tried[0]
        return self.present(found)

    def present(self, found: ModelFolder) -> ModelFolder:
        """Weights of whatever format, by their names."""
        names = tuple(name for name in self._names if name.endswith(WEIGHTS))
        if not names:
            return found
        return replace(found, format="." + names[0].rpartition(".")[2], shards=len(names), opened=names)

    def _indexed(self, found: ModelFolder, index: str) -> ModelFolder:
        path = f"{self._folder}/{index}"
        flaw = self.problem(index, self.small)
        if flaw is None:
            try:
                read = read_index(self._files, path)
            except OSError as error:
                flaw = Flaw(index, f"can't be read: {error.strerror or type(error).__name__}", unreadable=True)
            else:
                if read.whole and read.shards:
                    return replace(self._shards(found, read.shards), indexed_bytes=read.total_bytes)
                flaw = Flaw(index, "names no shards" if read.whole else "is cut off")
        return replace(found, format=SAFETENSORS, flaws=(flaw,))

    def _shards(self, found: ModelFolder, shards: Iterable[str]) -> ModelFolder:
        names = sorted(shards)
        sizes: list[int] = []

        def whole(name: str) -> str:
            if leaves(name):
                return "is outside of the model's folder"
            shard = safetensors.look(self._files, f"{self._folder}/{name}")
            sizes.append(shard.size_bytes)
            return shard.wrong

        flaws = [flaw for name in names if (flaw := self.problem(name, whole))]
        return replace(
            found,
            format=SAFETENSORS,
            shards=len(names),
            size_bytes=sum(sizes),
            flaws=tuple(flaws),
            opened=tuple(name for name in names if not leaves(name)),
        )

    def partial(self) -> tuple[str, ...]:
        names = [name for name in self._names if _PARTIAL.fullmatch(name)]
        elsewhere = [f"{self._folder}/{DOWNLOADS}"]
        if cached := SNAPSHOT.fullmatch(self._folder):
            elsewhere.append(f"{cached[1]}/blobs")
        for folder in elsewhere:
            with suppress(OSError):
                names += [name for name in self._files.names(folder) if name.endswith(".incomplete")]
        return tuple(_shown(name) for name in names)

    def download_cache(self) -> str:
        """`snapshots/REVISION` in a folder such as models--org--name."""
        if "snapshots" not in self._names or any(name in self._names for name in CONFIGS):
            return ""
        with suppress(OSError):
            revision = self._files.text(f"{self._folder}/refs/main", limit=200).strip()
            if revision and self._files.exists(f"{self._folder}/snapshots/{revision}"):
                return f"snapshots/{_shown(revision)}"
        with suppress(OSError, IndexError):
            return f"snapshots/{_shown(self._files.names(f'{self._folder}/snapshots')[-1])}"
        return "snapshots/REVISION"


def _is_tokenizer(name: str) -> bool:
    return name in _TOKENIZERS or name.endswith(_TOKENIZER_ENDS) or bool(_TOKENIZER_CODE.search(name))


def _numbered(names: Iterable[str]) -> set[str]:
    """What must be there beside `model-00002-of-00046.safetensors`."""
    sets = {(match[1], int(match[3])) for name in names if (match := _NUMBERED.fullmatch(name))}
    return {
        f"{stem}-{number:05}-of-{count:05}{SAFETENSORS}"
        for stem, count in sets
        if count <= _MOST_NUMBERED
        for number in range(1, count + 1)
    }


def _grouped(flaws: Iterable[Flaw]) -> tuple[Flaw, ...]:
    """One for each thing that is wrong."""
    groups: dict[tuple[str, bool], list[Flaw]] = {}
    for flaw in flaws:
        groups.setdefault((flaw.wrong, flaw.unreadable), []).append(flaw)
    return tuple(replace(some[0], name=_shown(some[0].name), count=len(some)) for some in groups.values())


def _shown(name: str) -> str:
    return sanitize(name, _SHOWN_LENGTH)
