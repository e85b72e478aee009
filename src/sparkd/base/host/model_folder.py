"""A model's folder, examined as its loader will read it: missing files, and files that are incomplete."""

import errno
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import islice

from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.base.host import safetensors, weights
from sparkd.base.host.files import Files, Kind
from sparkd.base.lib.text import parse_json, sanitize

SAFETENSORS = ".safetensors"
CONFIGS = ("config.json", "params.json")
"""Hugging Face's and Mistral's."""
INDICES = (f"model{SAFETENSORS}{weights.INDEX}", f"consolidated{SAFETENSORS}{weights.INDEX}")
"""Hugging Face's and Mistral's. vLLM ignores an index of another name; without one it loads every file."""

_TOKENIZERS = frozenset(("tokenizer.json", "tekken.json", "vocab.json", "vocab.txt"))
_SPARE = frozenset(("merges.txt", "vocab.json", "vocab.txt"))
"""Files that are not opened beside a tokenizer.json, which has their content; some repositories keep them empty."""
_TOKENIZER_ENDS = (".model", ".tiktoken")
_TOKENIZER_CODE = re.compile(r"tokeniz\w*\.py")
_UNFINISHED = re.compile(r".+\.(?:incomplete|part|partial|aria2|crdownload|tmp)|\..+\.(?:safetensors|bin|gguf)\.\w{6}")
"""Unfinished files of Hugging Face, browsers, aria2; the last is a copy by rsync."""
_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors", re.ASCII)
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Flaw(Struct, frozen=True):
    """One fault of `count` files; `name` is the first."""

    name: str
    wrong: str
    count: int = 1
    unreadable: bool = False


class ModelFolder(Struct, frozen=True):
    """A check's evidence has these values too: programs read them by the names in JSON."""

    exists: bool = field(default=True, name="there")
    """Whether there is a folder that is not empty."""
    download_cache: str = ""
    """A download, as a path below a folder that holds downloads instead of a model: that of refs/main, else any."""
    has_config: bool = field(default=False, name="config")
    has_tokenizer: bool = field(default=False, name="tokenizer")
    format: str = ""
    """Suffix of the weights; empty where there are none."""
    shards: int = 0
    size_bytes: int = 0
    indexed_bytes: int | None = None
    """Size of all tensors, from the index."""
    flaws: tuple[Flaw, ...] = ()
    unfinished: tuple[str, ...] = field(default=(), name="partial")
    """Downloads in progress or interrupted."""
    opened: tuple[str, ...] = ()
    """Files that the loader opens."""


def examine(files: Files, folder: str, *, shards: bool = True) -> ModelFolder:
    """Examine a model's folder without reading a tensor. Raises OSError where the folder itself is unreadable, and for
    more than weights.MOST_FILES shards.

    Without `shards` only the names of weights are checked: the loader reads them in another way.
    """
    try:
        names = files.names(folder)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        names = ()
    if not names:
        return ModelFolder(exists=False)
    reader = _Folder(files, folder, names)
    small_names = (name for name in names if name in weights.SMALL_FILES or name.endswith(_TOKENIZER_ENDS))
    small_flaws = [reader.find_small_flaw(name) for name in small_names]
    loaded = reader.examine_weights() if shards else reader.list_weights()
    return replace(
        loaded,
        download_cache=reader.find_download(),
        has_config=any(name in names for name in CONFIGS),
        has_tokenizer=any(_is_tokenizer(name) for name in names),
        flaws=_group_flaws((*filter(None, small_flaws), *loaded.flaws)),
        unfinished=reader.list_unfinished(),
        opened=(*(name for name in names if name in CONFIGS), *loaded.opened),
    )


def find_unreadable_by_others(files: Files, folder: str, model: ModelFolder) -> str:
    """The first of folder and files that only some users may read; empty where there is none."""
    for path in (folder, *(f"{folder}/{name}" for name in model.opened)):
        with suppress(OSError):
            facts = files.stat(path)
            needed = 0o005 if facts.kind is Kind.FOLDER else 0o004
            if facts.permissions & needed != needed:
                return _clean_name(path)
    return ""


def list_tensor_files(files: Files, folder: str) -> tuple[str, ...]:
    """Safetensors files as the loader reads them. Mistral's repositories have the same weights twice, under two names.

    Raises OSError where the folder itself is unreadable.
    """
    names = [name for name in examine(files, folder).opened if name.endswith(SAFETENSORS)]
    hugging_face = [name for name in names if not name.startswith("consolidated")]
    return tuple(f"{folder}/{name}" for name in hugging_face or names)


class _Folder:
    """A folder that is not empty; `names` are those of its files."""

    def __init__(self, files: Files, folder: str, names: tuple[str, ...]) -> None:
        self._files = files
        self._folder = folder
        self._names = names

    def find_small_flaw(self, name: str) -> Flaw | None:
        """The fault of a file that is read as a whole, or the reason why it can't be read; None without one."""
        try:
            fault = self._check_small(name)
        except OSError as error:
            return self._explain(name, error)
        return Flaw(name, fault) if fault else None

    def _explain(self, name: str, error: OSError) -> Flaw:
        if error.errno in _GONE:
            return Flaw(name, "is missing" if name not in self._names else "is a link to nothing")
        return Flaw(name, f"can't be read: {error.strerror or type(error).__name__}", unreadable=True)

    def _check_small(self, name: str) -> str:
        path = f"{self._folder}/{name}"
        facts = self._files.stat(path)
        if facts.kind is not Kind.FILE:
            return f"is a {facts.kind.value}, not a file"
        if not facts.size_bytes:
            return "" if name in _SPARE and "tokenizer.json" in self._names else "is empty"
        if self._files.head(path, len(safetensors.LFS_POINTER)) == safetensors.LFS_POINTER:
            return safetensors.LFS_FAULT
        if name not in CONFIGS:
            return ""
        with suppress(ValueError):
            if isinstance(parse_json(self._files.bytes(path)), dict):
                return ""
        return "is no JSON object"

    def examine_weights(self) -> ModelFolder:
        """The first set of shards that has no flaw, else the first set with its flaws.

        Without a set of shards, the names of the weights alone.
        """
        tensor_files = {name for name in self._names if name.endswith(SAFETENSORS)}
        checks = [partial(self._check_index, name) for name in INDICES if name in self._names]
        if tensor_files and INDICES[0] not in self._names:
            checks.append(partial(self._check_shards, tensor_files | _name_complete_sets(tensor_files)))
        elif mistral := {name for name in tensor_files if name.startswith("consolidated")}:
            checks.append(partial(self._check_shards, mistral))
        first_set = None
        for check in checks:
            examined = check()
            if not examined.flaws:
                return examined
            first_set = first_set or examined
        return first_set or self.list_weights()

    def list_weights(self) -> ModelFolder:
        """The names of the weights, none of which is checked."""
        names = tuple(name for name in self._names if name.endswith(weights.WEIGHTS))
        suffix = "." + names[0].rpartition(".")[2] if names else ""
        return ModelFolder(format=suffix, shards=len(names), opened=names)

    def _check_index(self, name: str) -> ModelFolder:
        if flaw := self.find_small_flaw(name):
            return ModelFolder(format=SAFETENSORS, flaws=(flaw,))
        try:
            index = weights.read_index(self._files, f"{self._folder}/{name}")
        except OSError as error:
            return ModelFolder(format=SAFETENSORS, flaws=(self._explain(name, error),))
        if not (index.whole and index.shards):
            return ModelFolder(
                format=SAFETENSORS, flaws=(Flaw(name, "names no shards" if index.whole else "is cut off"),)
            )
        return replace(self._check_shards(index.shards), indexed_bytes=index.total_bytes)

    def _check_shards(self, shards: Iterable[str]) -> ModelFolder:
        names = sorted(shards)
        if len(names) > weights.MOST_FILES:
            raise OSError(errno.EFBIG, f"more than {weights.MOST_FILES} files of weights", self._folder)
        flaws: list[Flaw] = []
        opened: list[str] = []
        size_bytes = 0
        for name in names:
            if weights.is_outside(name):
                flaws.append(Flaw(name, "is outside of the model's folder"))
                continue
            opened.append(name)
            try:
                shard_bytes, fault = safetensors.find_fault(self._files, f"{self._folder}/{name}")
            except OSError as error:
                flaws.append(self._explain(name, error))
            else:
                size_bytes += shard_bytes
                if fault:
                    flaws.append(Flaw(name, fault))
        return ModelFolder(
            format=SAFETENSORS, shards=len(names), size_bytes=size_bytes, flaws=tuple(flaws), opened=tuple(opened)
        )

    def list_unfinished(self) -> tuple[str, ...]:
        names = [name for name in self._names if _UNFINISHED.fullmatch(name)]
        snapshot = weights.SNAPSHOT.fullmatch(self._folder)
        for folder in (f"{self._folder}/{weights.DOWNLOADS}", *([f"{snapshot[1]}/blobs"] if snapshot else ())):
            with suppress(OSError):
                names += [name for name in self._files.names(folder) if name.endswith(".incomplete")]
        return tuple(_clean_name(name) for name in names)

    def find_download(self) -> str:
        """`snapshots/REVISION` in a folder of downloads such as models--org--name; empty in any other."""
        if "snapshots" not in self._names or any(name in self._names for name in CONFIGS):
            return ""
        with suppress(OSError, ValueError):  # a NUL
            revision = self._files.text(f"{self._folder}/refs/main", limit=200).strip()
            if revision and self._files.exists(f"{self._folder}/snapshots/{revision}"):
                return f"snapshots/{_clean_name(revision)}"
        with suppress(OSError, IndexError):
            return f"snapshots/{_clean_name(self._files.names(f'{self._folder}/snapshots')[-1])}"
        return "snapshots/REVISION"


def _is_tokenizer(name: str) -> bool:
    return name in _TOKENIZERS or name.endswith(_TOKENIZER_ENDS) or bool(_TOKENIZER_CODE.search(name))


def _name_complete_sets(names: Iterable[str]) -> set[str]:
    """All names of each numbered set of which a name is present, such as `model-00002-of-00046.safetensors`.

    At most one more than a model may have: a file without content may name a set of any size.
    """
    sets = {(match[1], int(match[3])) for name in names if (match := _NUMBERED.fullmatch(name))}
    complete = (
        f"{stem}-{number:05}-of-{count:05}{SAFETENSORS}" for stem, count in sets for number in range(1, count + 1)
    )
    return {*islice(complete, weights.MOST_FILES + 1)}


def _group_flaws(flaws: Iterable[Flaw]) -> tuple[Flaw, ...]:
    """One flaw for all files with the same fault."""
    groups: dict[tuple[str, bool], list[Flaw]] = {}
    for flaw in flaws:
        groups.setdefault((flaw.wrong, flaw.unreadable), []).append(flaw)
    return tuple(replace(group[0], name=_clean_name(group[0].name), count=len(group)) for group in groups.values())


def _clean_name(name: str) -> str:
    return sanitize(name, 120)
