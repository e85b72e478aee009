"""Variables of a script or a compose file, and their uses in a text. A value that is not known becomes a mark."""

import re
from contextlib import suppress
from math import prod
from os.path import basename, dirname, normpath, realpath

from msgspec import Struct

from sparkd.base.vllm.args import LONGEST_ARGUMENT
from sparkd.tools.importers.marks import OPEN, hide, mark, unknown

SET_BY_IMAGE = ("PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")
"""Variables with folders, to which an image and a node give values of their own."""


class CommandError(Exception):
    """A text cannot be read as a command; the message gives the reason."""


_NAMED = re.compile(
    r"\$(?:(?P<plain>[A-Za-z_]\w*|[0-9])|\{(?P<name>[A-Za-z_]\w*|[0-9])(?:(?<=BASH_SOURCE)\[0\])?(?:(?P<mode>:?[-?+=])|\}))",
    re.ASCII,
)
"""$NAME and ${NAME} in full; of ${NAME:-ALTERNATIVE}, what comes before the alternative."""
_PATH = r'"?((?:\$\((?:dirname|readlink -f|realpath) (?:-- )?\S+\))?[^\s"|;&<>]*)"?'
_OF_PATH = re.compile(
    rf"\$\((?:(dirname|basename|readlink -f|realpath) (?:-- )?{_PATH}"
    rf"|(?:cd (?:-- )?{_PATH}(?: &?>/dev/null)? && )?pwd(?: -P)?)\)|`pwd`"
)
"""A part of a path, or the folder of a script, as in $(cd "$(dirname "$0")/.." && pwd)."""
_NOT_PLAIN = re.compile(rf"[~*?\[\]\\'\"{{}}{OPEN}]")
"""What a path has that is not known, or of which bash may make another path."""
_ARITHMETIC = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
_CLOSING = {"(": (")", "\\)"), "$(": (")",), "${": ("}",)}
"""What ends each. An escaped ) ends no $(, but a group in an expression of sed."""
_MOST_FILLED_IN = 1 << 22
"""Characters, of all values of one file together: text that doubles itself must end."""


class Variables(Struct):
    """Values of variables by name."""

    values: dict[str, str]
    fixed: frozenset[str] = frozenset()
    """Names that no assignment changes."""
    characters_left: int = _MOST_FILLED_IN
    """Characters that may still be filled in."""

    def value(self, name: str) -> str:
        """Its value, or a mark where it has none; a `name` that can't be one is returned as it is."""
        return self.values.get(name, mark(f"${name}") if name.isidentifier() else name)

    def override(self, name: str) -> str:
        """The value that the user gives by an option; empty without one."""
        return self.values[name] if name in self.fixed else ""

    def assign(self, name: str, value: str) -> None:
        if name not in self.fixed:
            self.values[name] = hide(name, value)

    def fill(self, text: str, depth: int = 0) -> str:
        """The text with the value of each variable in it, and $ for $$. Raises CommandError."""
        filled, at = "", 0
        while (start := text.find("$", at)) >= 0:
            filled += text[at:start]
            value, at = ("$", start + 2) if text.startswith("$$", start) else self.use(text, start, depth)
            filled += value
        return filled + text[at:]

    def use(self, text: str, at: int, depth: int = 0, *, in_shell: bool = False) -> tuple[str, int]:
        """The value of the $ or backquote expression that begins at `at`, and its end. Raises CommandError."""
        named = _NAMED.match(text, at)
        end = named.end() if named and not named["mode"] else _find_end(text, at)
        alternative = text[named.end() : end - 1] if named else ""
        alternative = re.sub(r'\\(["\\])', r"\1", alternative) if in_shell else alternative
        value = self._evaluate_named(named, alternative, depth) if named else self._evaluate_other(text[at:end], depth)
        self.spend(len(value) if len(value) <= LONGEST_ARGUMENT else self.characters_left + 1)
        return value, end

    def spend(self, size: int) -> None:
        """Take `size` from the characters that may be filled in. Raises CommandError where too few are left."""
        self.characters_left -= size
        if self.characters_left < 0:
            raise CommandError("is too long once it is filled in")

    def _evaluate_named(self, named: re.Match[str], alternative: str, depth: int) -> str:
        """The value of $NAME, or of ${NAME:-ALTERNATIVE}, also with another sign."""
        name, mode = named["plain"] or named["name"], named["mode"] or ""
        value = self.values.get(name)
        if ":" in mode:
            value = value or None  # an empty one is as good as none
        if mode.endswith("+"):
            return "" if value is None else self._expand_alternative(alternative, depth)
        if value is not None:
            return value
        return self._expand_alternative(alternative, depth) if mode.endswith(("-", "=")) else mark(f"${name}")

    def _expand_alternative(self, text: str, depth: int) -> str:
        if depth > 8:
            raise CommandError("variables are nested too deep")
        is_quoted = re.fullmatch(r"'[^']*'|\"[^\"]*\"", text)
        return self.fill(text[1:-1] if is_quoted else text, depth + 1)

    def _evaluate_other(self, text: str, depth: int) -> str:
        """The value of an expression that names no variable: a mark, such as for the output of a program.

        Known are parts of paths, the script and its folder, arithmetic, and a comment in backquotes: it is empty.
        """
        if re.fullmatch(r"`\s*#[^`\n]*`", text):
            return ""
        if len(text) <= 200 and (part := _OF_PATH.fullmatch(text)):
            path = self._expand_alternative(part[2] or part[3] or ".", depth).rstrip("/")
            return (not _NOT_PLAIN.search(path) and self._find_part(part[1], path)) or mark(text)
        if arithmetic := _ARITHMETIC.fullmatch(text):
            return self._compute(arithmetic[1], depth) or mark(text)
        if (base := re.fullmatch(r"\$\{(\w+)##\*/\}", text)) and base[1] in self.values:
            return self.values[base[1]].rpartition("/")[2]
        return text if text == "$" else mark(text)

    def find_folder(self, path: str) -> str:
        """The absolute form of a path from the current folder; empty where that is not known."""
        folder = path if path.startswith("/") else f"{self.values.get('PWD', '.')}/{path}"
        is_path = path[:1] not in ("", "-", "~") and folder.startswith("/") and len(folder) < 4096  # PATH_MAX
        return normpath(folder) if is_path and not unknown(folder) else ""

    def _find_part(self, program: str | None, path: str) -> str:
        """What the program prints of a path, or its absolute form; empty where that is not known."""
        if of_text := {"dirname": dirname, "basename": basename}.get(program or ""):
            return of_text(path)
        absolute = self.find_folder(path)
        return realpath(absolute) if program and absolute else absolute

    def _compute(self, text: str, depth: int) -> str:
        """The sum or product of whole numbers; empty for any other arithmetic."""
        text = self._expand_alternative(text, depth)
        text = re.sub(r"[A-Za-z_]\w*", lambda name: f"({self.value(name[0])[:201]})", text if len(text) <= 200 else "?")
        text = text if len(text) <= 200 else "?"
        self.spend(100)
        with suppress(ValueError):
            while inner := re.search(r"\(([^()]*)\)", text):
                text = text.replace(inner[0], f" {_add(inner[1])} ")
            return total if abs(int(total := _add(text))) < 1 << 63 else ""
        return ""


def _find_end(text: str, at: int) -> int:
    """The position after the expression at `at`, with its closing brace, parenthesis or backquote.

    Raises CommandError where nothing closes it.
    """
    next_sign = text[at + 1 : at + 2]
    if text[at] == "`":
        end = text.find("`", at + 1) + 1
    elif next_sign in ("(", "{"):
        end = _find_closing(text, at)
    else:
        return at + (2 if re.fullmatch(r"[@*#?!$0-9-]", next_sign) else 1)
    if not end:
        raise CommandError(f"{text[at : at + 20].split(chr(10))[0]} has no end: close it")
    return end


def _find_closing(text: str, at: int) -> int:
    """The position after what closes the $( or ${ at `at`; 0 where nothing does."""
    opened = [""]  # what opens each expression that is not closed, the innermost last
    for sign in re.compile(r"\\?\)|\$?\(|\$\{|\}").finditer(text, at):
        # Among commands, as in $( ), a plain ( opens, too; in ${ } it is text.
        if sign[0] in (("(", "$(") if "(" in opened[-1] else ("$(", "${")):
            opened.append(sign[0])
        elif sign[0] in _CLOSING.get(opened[-1], ()):
            opened.pop()
            if not opened[-1]:
                return sign.end()
    return 0


def _add(text: str) -> str:
    """The sum of products of whole numbers. Raises ValueError for another text, and for octal numbers."""
    return str(sum(prod(int(word, 0) for word in term.split("*")) for term in re.sub(r"-\s*", "+-", text).split("+")))
