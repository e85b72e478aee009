"""A model's files: weights, their index, config.json, and what identifies them: names, sizes, hashes.

`manifest` reads no weights: 149 GB would take as long as loading them. Hugging Face's client keeps the SHA-256 of a
download: in its cache a file is a link into `blobs`, named by the hash; in a folder of `hf download --local-dir` it is
the second line of `.cache/huggingface/download/NAME.metadata`. Small files have a git hash of 40 digits.
"""

import errno
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from hashlib import sha256

from msgspec import Struct

from sparkd.base.host.files import Files, Kind
from sparkd.base.host.shm import File
from sparkd.base.lib.text import natural_order, parse_json

WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
INDEX = ".index.json"
SMALL_FILE_ENDS = (INDEX, ".jinja", ".model", ".tiktoken", ".py")
SMALL_FILES = frozenset(
    ("config.json", "generation_config.json", "params.json", "adapter_config.json", "quantize_config.json",
     "quant_config.json", "hf_quant_config.json", "tokenizer.json", "tokenizer_config.json", "tekken.json",
     "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.json",
     "preprocessor_config.json", "processor_config.json")
)  # fmt: skip
"""Files that Hugging Face's and Mistral's loaders read beside the weights. Others may differ: notes, licenses."""
HASHED_LIMIT_BYTES = 64 << 20
"""Largest file that is hashed, and largest index that is read. Tokenizers have up to 40 MB, indices 10. A larger file
counts by its size."""
HASHED_IN_ALL_BYTES = 512 << 20
"""Limit of a model's small files together: sparse ones take no disk, and minutes to hash."""
MOST_FILES = 10_000
SNAPSHOT = re.compile(r"(.*/models--[^/]+)/snapshots/.+")
"""A model in Hugging Face's cache, or a folder of it: symlinks into the folder `blobs` beside `snapshots`."""
DOWNLOADS = ".cache/huggingface/download"
"""Where `hf download --local-dir` keeps unfinished files."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAMED = re.compile(rb':\s*"([^"\\]{1,255}\.(?:safetensors|bin|gguf|pth?))"')
"""A shard in an index: a value, never a key. The index is read as a stream, since it may have 10 MB."""
_TOTAL = re.compile(rb'"total_size"\s*:\s*(\d{1,18})[\s,}]')


class Index(Struct, frozen=True):
    """`*.index.json`: the names of all shards, and the bytes of all tensors, if given."""

    shards: frozenset[str]
    total_bytes: int | None
    whole: bool
    """Whether the index has its end: one that was cut off lists too few shards."""


Manifest = tuple[tuple[str, str], ...]
"""Sorted names of files, each with `123 bytes`, `sha256 ...`, or `missing`."""


def manifest(files: Files, folder: str) -> Manifest:
    """The files that identify a model's weights, symlinks followed. Raises OSError, also for more than MOST_FILES."""
    values: dict[str, str] = {}
    bytes_left = HASHED_IN_ALL_BYTES
    for name in files.names(folder):
        is_small = name in SMALL_FILES or name.endswith(SMALL_FILE_ENDS)
        if is_small and (bytes_left := bytes_left - _hashed_bytes(files, f"{folder}/{name}")) < 0:
            raise OSError(errno.EFBIG, f"more than {HASHED_IN_ALL_BYTES >> 20} MiB of files that are hashed", folder)
        if is_small or name.endswith(WEIGHTS):
            values[name] = _describe(files, folder, name, hashed=is_small)
        if name.endswith(INDEX) and values[name].startswith("sha256"):
            shards = read_index(files, f"{folder}/{name}").shards - values.keys()
            values |= {shard: _describe(files, folder, shard, hashed=False) for shard in shards}
        if len(values) > MOST_FILES:
            raise OSError(errno.EFBIG, f"more than {MOST_FILES} files of weights", folder)
    entries = ((os.fsencode(name).decode("utf-8", "backslashreplace"), value) for name, value in values.items())
    return tuple(sorted(entries))


def read_index(files: Files, path: str) -> Index:
    """An index, read as a stream. Raises OSError, also for one that is too long."""
    names: set[bytes] = set()
    total_bytes: int | None = None
    first_byte = tail = b""
    bytes_left = HASHED_LIMIT_BYTES
    for chunk in files.chunks(path):
        bytes_left -= len(chunk)
        if bytes_left < 0:  # a sparse one takes no disk, and hours to read
            raise OSError(errno.EFBIG, f"an index of more than {HASHED_LIMIT_BYTES >> 20} MiB", path)
        text = tail + chunk
        first_byte = first_byte or text.lstrip()[:1]
        names.update(_NAMED.findall(text))
        if len(names) > MOST_FILES:
            raise OSError(errno.EFBIG, f"more than {MOST_FILES} files of weights", path)
        if total_bytes is None and (match := _TOTAL.search(text)):
            total_bytes = int(match[1])
        tail = text[-300:]  # longer than a name of a shard with its marks
    shards = frozenset(name.decode("utf-8", "backslashreplace") for name in names)
    return Index(shards, total_bytes, first_byte == b"{" and tail.rstrip()[-1:] == b"}")


def is_outside(shard: str) -> bool:
    """Whether a name in an index leads out of the model's folder, or has a NUL, with which none is in it."""
    return shard.startswith("/") or ".." in shard.split("/") or "\0" in shard


def read_config(files: Files, folder: str) -> Mapping[str, object]:
    """config.json; empty where it is missing or unreadable, which `model_folder` reports.

    As in vLLM, a file of its own may say how the weights are quantized.
    """
    config = _read_object(files, f"{folder}/config.json")
    if config and config.get("quantization_config") is None:
        for name in ("hf_quant_config.json", "quantize_config.json", "quant_config.json"):
            if quantization := _read_object(files, f"{folder}/{name}"):
                return {**config, "quantization_config": quantization}
    return config


def _read_object(files: Files, path: str) -> Mapping[str, object]:
    try:
        content = parse_json(files.bytes(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def recorded_hashes(files: Files, folder: str, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 by name, of files whose download recorded it."""
    hashes: dict[str, str] = {}
    for name in names:
        with suppress(OSError, IndexError):
            if SNAPSHOT.fullmatch(folder):
                recorded = files.link(f"{folder}/{name}").rpartition("/")[2]
            else:
                recorded = files.text(f"{folder}/{DOWNLOADS}/{name}.metadata", 4096).splitlines()[1].strip()
            if _SHA256.fullmatch(recorded):
                hashes[name] = recorded
    return hashes


def compute_hash(files: Files, path: str, report: Callable[[int], None]) -> str:
    """SHA-256 of a file; `report` gets the bytes of each piece. Raises OSError.

    What was read is dropped from the page cache, which would take memory from the engine.
    """
    digest, offset = sha256(), 0
    with files.opened(path) as fd:
        while chunk := os.read(fd, 8 << 20):
            digest.update(chunk)
            os.posix_fadvise(fd, offset, len(chunk), os.POSIX_FADV_DONTNEED)
            offset += len(chunk)
            report(len(chunk))
    return digest.hexdigest()


def _describe(files: Files, folder: str, name: str, *, hashed: bool) -> str:
    """The value of a file in a Manifest: its hash if `hashed` and not too large, else its size."""
    if is_outside(name):
        return "outside of the model's folder"
    path = f"{folder}/{name}"
    try:
        facts = files.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    if facts.kind is not Kind.FILE:
        return f"a {facts.kind.value}, no file"
    if not hashed or facts.size_bytes > HASHED_LIMIT_BYTES:
        return f"{facts.size_bytes} bytes"
    digest, bytes_left = sha256(), HASHED_LIMIT_BYTES
    for chunk in files.chunks(path):
        bytes_left -= len(chunk)
        if bytes_left < 0:  # it grew while it was read
            break
        digest.update(chunk)
    return f"sha256 {digest.hexdigest()}"


def _hashed_bytes(files: Files, path: str) -> int:
    """Bytes that `_describe` hashes of a small file."""
    with suppress(FileNotFoundError, NotADirectoryError):
        facts = files.stat(path)
        return facts.size_bytes if facts.kind is Kind.FILE and facts.size_bytes <= HASHED_LIMIT_BYTES else 0
    return 0


def list_shards(files: Files, folder: str) -> tuple[File, ...]:
    """Shards in vLLM's load order: by name, numbers as numbers. Raises OSError where the folder is unreadable."""
    shards: dict[tuple[int, int], File] = {}
    for name in sorted(files.names(folder), key=natural_order):
        path = f"{folder}/{name}"
        with suppress(FileNotFoundError):
            if name.endswith(WEIGHTS) and (facts := files.stat(path)).kind is Kind.FILE:
                shard = File(files.resolved(path), facts.device, facts.inode, facts.size_bytes)
                shards.setdefault(shard.identity, shard)
    return tuple(shards.values())
