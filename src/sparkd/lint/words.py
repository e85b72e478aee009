"""The words of a `vllm serve` as its own parser would see them: flags by name, the last of several wins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Flags = Mapping[str, str | None]
"""The first value of each flag by its name in kebab case; None where it has none, or none that can be known."""

SHORT = {
    "-cc": "compilation-config",
    "-sc": "speculative-config",
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-n": "nnodes",
    "-r": "node-rank",
}
"""Short forms that vLLM 0.32 knows of flags that are judged here."""


def flags(words: Iterable[str]) -> dict[str, str | None]:
    """What a program's words say. A word behind a flag is its value, unless it is a flag itself."""
    found: dict[str, str | None] = {}
    last = ""
    for word in words:
        name = _name(word)
        if name:
            said, equals, value = name.partition("=")
            last = "" if equals else said
            found[said] = value if equals else None
        elif last:
            found[last] = word
            last = ""
    return found


def _name(word: str) -> str:
    """The flag that a word names, with `=VALUE` where that is in it; empty for a word that is none."""
    short, equals, value = word.partition("=")
    if short in SHORT:
        return SHORT[short] + equals + value
    if not word.startswith("--") or len(short) < 3:
        return ""
    head, dot, field = short[2:].partition(".")
    return head.replace("_", "-") + dot + field + equals + value
