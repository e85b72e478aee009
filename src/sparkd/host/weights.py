"""Identity of a model's files: names, sizes and hashes.

`manifest` reads no weights: 149 GB would take as long as loading them. Hugging Face's client keeps the SHA-256 of a
download: in its cache a file is a link into `blobs`, named by the hash; in a folder of `hf download --local-dir` it is
the second line of `.cache/huggingface/download/NAME.metadata`. Small files have a git hash of 40 digits.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from hashlib import sha256

from msgspec import Struct

from sparkd.host.files import Files, Kind

WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
INDEX = ".index.json"
DECIDING_ENDS = (INDEX, ".jinja", ".model", ".tiktoken", ".py")
DECIDING = frozenset(
    ("config.json", "generation_config.json", "params.json", "adapter_config.json", "quantize_config.json",
     "quant_config.json", "hf_quant_config.json", "tokenizer.json", "tokenizer_config.json", "tekken.json",
     "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.json",
     "preprocessor_config.json", "processor_config.json")
)  # fmt: skip
"""Files that Hugging Face's and Mistral's loaders read beside the weights. Others may differ: notes, licenses."""
HASHED_LIMIT_BYTES = 64 << 20
"""Of a file that is hashed; tokenizers have up to 40 MB. A larger one counts by its size."""
MOST_FILES = 10_000
MISSING = "missing"
SNAPSHOT = re.compile(r"(.+)/snapshots/[^/]+")
"""A model in Hugging Face's cache: symlinks into the folder `blobs` beside `snapshots`."""
DOWNLOADS = ".cache/huggingface/download"
"""Where `hf download --local-dir` keeps unfinished files."""
CHUNK_BYTES = 8 << 20

_SHA256 = re.compile(r"[0-9a-f]{64}")
_LONGEST_NAME = 300
_NAMED = re.compile(rb':\s*"([^"\\]{1,255}\.(?:safetensors|bin|gguf|pth?))"')
"""A shard in an index: a value, never a key. The index is read as a stream, since it may have 10 MB."""
_TOTAL = re.compile(rb'"total_size"\s*:\s*(\d{1,18})[\s,}]')


class Index(Struct, frozen=True):
    """`*.index.json`: the names of all shards, and the bytes of all tensors, if given."""

    shards: frozenset[str]
    total_bytes: int | None
    whole: bool
    """Whether it has its end; one that was cut off lists too few."""


class Weights(Struct, frozen=True):
    """`files`: sorted names, each with `123 bytes`, `sha256 ...`, or `missing`."""

    files: tuple[tuple[str, str], ...]


def manifest(files: Files, folder: str) -> Weights:
    """Of a model's folder, symlinks followed. Raises OSError, also for more than MOST_FILES files."""
    found: dict[str, str] = {}
    for name in files.names(folder):
        path = f"{folder}/{name}"
        if name.endswith(WEIGHTS):
            found[name] = _described(files, path, hashed=False)
        elif name in DECIDING or name.endswith(DECIDING_ENDS):
            found[name] = _described(files, path, hashed=True)
        if name.endswith(INDEX) and found[name].startswith("sha256"):
            shards = read_index(files, path).shards - found.keys()
            found |= {shard: _shard(files, folder, shard) for shard in shards}
        if len(found) > MOST_FILES:
            raise OSError(errno.EFBIG, f"more than {MOST_FILES} files of weights", folder)
    named = ((os.fsencode(name).decode("utf-8", "backslashreplace"), value) for name, value in found.items())
    return Weights(tuple(sorted(named)))


def read_index(files: Files, path: str) -> Index:
    """Raises OSError."""
    names: set[bytes] = set()
    total: int | None = None
    first = rest = b""
    for chunk in files.chunks(path):
        text = rest + chunk
        first = first or text.lstrip()[:1]
        names.update(_NAMED.findall(text))
        if len(names) > MOST_FILES:
            raise OSError(errno.EFBIG, f"more than {MOST_FILES} files of weights", path)
        if total is None and (match := _TOTAL.search(text)):
            total = int(match[1])
        rest = text[-_LONGEST_NAME:]
    shards = frozenset(name.decode("utf-8", "backslashreplace") for name in names)
    return Index(shards, total, first == b"{" and rest.rstrip()[-1:] == b"}")


def leaves(shard: str) -> bool:
    """Whether a name in an index leads out of the model's folder."""
    return shard.startswith("/") or ".." in shard.split("/")


def read_config(files: Files, folder: str) -> Mapping[str, object]:
    """config.json; empty where it is missing or unreadable, which `model_folder` reports."""
    try:
        found = json.loads(files.bytes(f"{folder}/config.json"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def recorded_hashes(files: Files, folder: str, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 by name, of files whose download recorded it."""
    found: dict[str, str] = {}
    for name in names:
        with suppress(OSError, IndexError):
            if SNAPSHOT.fullmatch(folder):
                kept = files.link(f"{folder}/{name}").rpartition("/")[2]
            else:
                kept = files.text(f"{folder}/{DOWNLOADS}/{name}.metadata", 4096).splitlines()[1].strip()
            if _SHA256.fullmatch(kept):
                found[name] = kept
    return found


def compute_hash(files: Files, path: str, report: Callable[[int], None]) -> str:
    """SHA-256 of a file; `report` gets the bytes of each piece. Raises OSError.

    It is dropped from the page cache, which would take memory from the engine.
    """
    digest, done = sha256(), 0
    with files.opened(path) as fd:
        while piece := os.read(fd, CHUNK_BYTES):
            digest.update(piece)
            os.posix_fadvise(fd, done, len(piece), os.POSIX_FADV_DONTNEED)
            done += len(piece)
            report(len(piece))
    return digest.hexdigest()


def _shard(files: Files, folder: str, shard: str) -> str:
    return "outside of the model's folder" if leaves(shard) else _described(files, f"{folder}/{shard}", hashed=False)


def _described(files: Files, path: str, *, hashed: bool) -> str:
    try:
        facts = files.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return MISSING
    if facts.kind is not Kind.FILE:
        return f"a {facts.kind.value}, no file"
    if not hashed or facts.size_bytes > HASHED_LIMIT_BYTES:
        return f"{facts.size_bytes} bytes"
    digest, left = sha256(), HASHED_LIMIT_BYTES
    for chunk in files.chunks(path):
        left -= len(chunk)
        if left < 0:  # it grew while it was read
            break
        digest.update(chunk)
    return f"sha256 {digest.hexdigest()}"
