"""A model's folder, told in a few KiB: names and sizes of its weights, hashes of the small files that decide it.

The weights themselves are never read: reading 149 GB would take as long as loading them.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from hashlib import sha256

from msgspec import Struct

from sparkd.host.files import FileFacts, Files, Kind

WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
INDEX = ".index.json"
DECIDING_ENDS = (INDEX, ".jinja", ".model", ".tiktoken", ".py")
DECIDING = frozenset(
    ("config.json", "generation_config.json", "params.json", "adapter_config.json", "quantize_config.json",
     "quant_config.json", "hf_quant_config.json", "tokenizer.json", "tokenizer_config.json", "tekken.json",
     "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.json",
     "preprocessor_config.json", "processor_config.json")
)  # fmt: skip
"""What Hugging Face's and Mistral's loaders read beside the weights. Other files may differ: notes, licenses."""
HASHED_LIMIT_BYTES = 64 << 20
"""Of a file that is hashed; tokenizers have up to 40 MB. Of a larger one only the size counts."""
MOST_FILES = 10_000
"""DeepSeek-V3 has 163 shards."""
MISSING = "missing"

_LONGEST_NAME = 300
_NAMED = re.compile(rb':\s*"([^"\\]{1,255}\.(?:safetensors|bin|gguf|pth?))"')
"""A shard that an index maps a tensor to: a value, never a key. Read as a stream, for the index itself has 10 MB."""
_TOTAL = re.compile(rb'"total_size"\s*:\s*(\d{1,18})[\s,}]')


class Index(Struct, frozen=True):
    """`*.index.json`: which shards there must be, and how many bytes all tensors have, where it says so."""

    shards: frozenset[str]
    total_bytes: int | None
    whole: bool
    """Whether it ends as it must; one that was cut off names too few."""


class Weights(Struct, frozen=True):
    """`files`: sorted names with what is known of each: `123 bytes`, `sha256 ...`, or `missing`."""

    files: tuple[tuple[str, str], ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """What an index or a link names, and is not there."""
        return tuple(name for name, said in self.files if said == MISSING)


def manifest(files: Files, folder: str) -> Weights:
    """Look through a model's folder, symlinks followed. Raises OSError, also for more than MOST_FILES files."""
    found: dict[str, str] = {}
    for name in files.names(folder):
        path = f"{folder}/{name}"
        if name.endswith(WEIGHTS):
            found[name] = _size(files, path)
        elif name in DECIDING or name.endswith(DECIDING_ENDS):
            found[name] = _content(files, path)
        if name.endswith(INDEX) and found[name].startswith("sha256"):
            found |= {
                shard: _named(files, folder, shard) for shard in read_index(files, path).shards if shard not in found
            }
        if len(found) > MOST_FILES:
            raise OSError(errno.EFBIG, f"more than {MOST_FILES} files of weights", folder)
    return Weights(
        tuple(sorted((os.fsencode(name).decode("utf-8", "backslashreplace"), found[name]) for name in found))
    )


def read_index(files: Files, path: str) -> Index:
    """Which shards an index names. Raises OSError."""
    names: set[bytes] = set()
    total: int | None = None
    rest = b""
    first = b""
    for chunk in files.chunks(path):
        text = rest + chunk
        first = first or text.lstrip()[:1]
        names.update(_NAMED.findall(text))
        if len(names) > MOST_FILES:
            raise OSError(errno.EFBIG, f"more than {MOST_FILES} files of weights", path)
        if total is None and (said := _TOTAL.search(text)):
            total = int(said[1])
        rest = text[-_LONGEST_NAME:]
    shards = frozenset(name.decode("utf-8", "backslashreplace") for name in names)
    return Index(shards, total, first == b"{" and rest.rstrip()[-1:] == b"}")


def leaves(shard: str) -> bool:
    """Whether a name in an index is that of a file outside of the model's folder."""
    return shard.startswith("/") or ".." in shard.split("/")


def _named(files: Files, folder: str, shard: str) -> str:
    if leaves(shard):
        return "outside of the model's folder"
    return _size(files, f"{folder}/{shard}")


def _size(files: Files, path: str) -> str:
    facts = _facts(files, path)
    return MISSING if facts is None else _bytes(facts)


def _content(files: Files, path: str) -> str:
    facts = _facts(files, path)
    if facts is None:
        return MISSING
    if facts.kind is not Kind.FILE or facts.size_bytes > HASHED_LIMIT_BYTES:
        return _bytes(facts)
    digest = sha256()
    for chunk in _at_most(files.chunks(path), HASHED_LIMIT_BYTES):
        digest.update(chunk)
    return f"sha256 {digest.hexdigest()}"


def _at_most(chunks: Iterator[bytes], limit: int) -> Iterator[bytes]:
    """A file that grows while it is read has an end too."""
    for chunk in chunks:
        limit -= len(chunk)
        if limit < 0:
            return
        yield chunk


def _bytes(facts: FileFacts) -> str:
    return f"{facts.size_bytes} bytes" if facts.kind is Kind.FILE else f"a {facts.kind.value}, no file"


def _facts(files: Files, path: str) -> FileFacts | None:
    try:
        return files.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
