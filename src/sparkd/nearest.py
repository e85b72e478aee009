"""The known word that a person most likely meant."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word most like `word`, or an empty string where none is alike.

    Of dotted names, one that is right but for its section wins: `cluster.recipe` means `engine.recipe`.
    """
    from difflib import get_close_matches

    words = list(known)
    last = word.rpartition(".")[2]
    moved = [one for one in words if one.rpartition(".")[2] == last]
    if len(moved) == 1:
        return moved[0]
    alike = get_close_matches(word, words, n=1, cutoff=0.6)
    return alike[0] if alike else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing."""
    found = nearest(word, known)
    return f"; did you mean {found}?" if found else ""
