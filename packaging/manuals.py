"""The generated parts of the manuals: commands, options, settings, keys of recipes, and what known errors mean."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from sparkd.base.config.reference import describe, format_line
from sparkd.base.config.settings import Settings
from sparkd.base.config.types import Section
from sparkd.base.host.kernel_events import KINDS, Effect
from sparkd.base.recipes.image import Build, Lines, Step
from sparkd.base.recipes.schema import Limit, Recipe, Volume
from sparkd.base.vllm.known_errors import GAP, TABLE, KnownError
from sparkd.tools.cli.main import COMMANDS, build_parser

_MARKUP = re.compile(r"[\\<>*_\[\]]")


def whole_parser() -> argparse.ArgumentParser:
    """With the options of every command, each of which has a module that is imported when it is used."""
    return build_parser(*(name for name, *_ in COMMANDS))


def inner_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


def leaves(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Each command and action, by its words."""
    inner = inner_parsers(parser)
    for name, one in inner.items():
        yield from leaves(one, (*words, name))
    if not inner:
        yield words, parser


def commands() -> str:
    """Of sparkd(8): the pages of the commands."""
    return "\n".join(f"- sparkd-{name}(8): {_summary(one)}" for name, one in inner_parsers(whole_parser()).items())


def head(name: str) -> str:
    """Of a command's page: its name and synopsis."""
    command = inner_parsers(whole_parser())[name]
    parts = [f"sparkd-{name} - {_summary(command)}\n", "# SYNOPSIS\n"]
    for words, parser in leaves(command, (name,)):
        actions = [action for action in parser._actions if action.dest != "help"]
        options = [" \\[*options*\\]"] if any(action.option_strings for action in actions) else []
        arguments = [f" {_value(action)}" for action in actions if not action.option_strings]
        parts.append(f"`sparkd {' '.join(words)}`{''.join(options + arguments)}\n")
    return "\n".join(parts)


def options(name: str) -> str:
    """Of a command's page: what `--help` prints of it, or of each of its actions."""
    parts = []
    for words, parser in leaves(inner_parsers(whole_parser())[name], (name,)):
        shown = [
            action
            for action in parser._actions
            if action.help not in (None, argparse.SUPPRESS) and action.dest != "help"
        ]
        if shown and len(words) > 1:
            parts.append(f"## sparkd {' '.join(words)}\n")
        for action in shown:
            names = ", ".join(f"`{name}`" for name in action.option_strings)
            required = " (required)" if action.required and names else ""
            text = _escape(parser._get_formatter()._expand_help(action))
            parts.append(f"{names} {_value(action)}".strip() + f"\n: {text}{required}\n")
    return "\n".join(parts)


def _summary(command: argparse.ArgumentParser) -> str:
    text = (command.description or "").partition(". ")[0].rstrip(".")
    return text[:1].lower() + text[1:]


def _value(action: argparse.Action) -> str:
    """What the option takes, or the argument is, as a manual writes it."""
    if action.nargs == 0:
        return ""
    choices = "|".join(str(one) for one in action.choices or ())
    name = action.metavar or choices or (action.dest.upper() if action.option_strings else action.dest)
    shown = f"*{_escape(str(name))}*"
    optional = f"\\[{shown}\\]" if action.nargs in ("?", "*") else shown
    return f"{optional}..." if action.nargs in ("*", "+") else optional


def _escape(text: str) -> str:
    """Help texts are plain text."""
    return _MARKUP.sub(lambda match: f"\\{match[0]}", " ".join(text.split()))


def settings() -> str:
    """Of sparkd.toml(5): every key with its default, by section."""
    parts = []
    for name, section in Settings():
        parts.append(f"# [{name}]\n\n{section.__doc__}\n")
        for key, value in section:
            default = format_line(key, value).replace(" = ", "` = `", 1)
            info = type(section).model_fields[key]
            parts.append(f"`{name}.{default}`\n: {describe(section, key)}{_span(info)}\n")
    return "\n".join(parts)


def _span(info: FieldInfo) -> str:
    bounds = [getattr(one, bound) for one in info.metadata for bound in ("ge", "le") if hasattr(one, bound)]
    return " From {} to {}.".format(*bounds) if len(bounds) == 2 else ""


def recipe_keys() -> str:
    """Of sparkd-recipe(5): every key with its default, in the order of the schema."""
    forms: tuple[tuple[str, type[Section]], ...] = (
        ("container.volumes", Volume),
        ("container.ulimits", Limit),
        ("image.assert", Lines),
    )
    forms += (("image.build", Build), ("image.build.steps", Step))
    parts = [*_keys(Recipe, "")]
    for key, form in forms:
        parts.append(f"A mapping in `{key}`: {form.__doc__}\n")
        parts += [
            f"`{info.alias or name}`\n: {' '.join((info.description or '').split())}\n"
            for name, info in form.model_fields.items()
        ]
    return "\n".join(parts)


def _keys(section: type[Section], prefix: str) -> Iterator[str]:
    for field, info in section.model_fields.items():
        name, kind = f"{prefix}{info.alias or field}", info.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _keys(kind, f"{name}.")
            continue
        choices = get_args(kind) if get_origin(kind) is Literal and len(get_args(kind)) > 1 else ()
        among = f" One of {', '.join(f'`{one}`' for one in choices)}." if choices else ""
        text = " ".join((info.description or "").split())
        yield f"`{name}`{_default(info)}\n: {text}{among}{_span(info)}\n"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return ""
    value = info.get_default(call_default_factory=True, validated_data={})
    return f", default `{format_line('x', value).removeprefix('x = ')}`" if value not in (None, "", (), {}) else ""


def symptoms() -> str:
    """Of troubleshooting.md: every known error, by its message."""
    engine = "".join(_symptom(one) for one in TABLE)
    effects = (effect for kind in KINDS.values() for effect in (*kind.codes.values(), kind))
    kernel = "".join(dict.fromkeys(map(_kernel_symptom, effects)))  # two codes may mean the same
    return f"## In the engine's lines\n\n{engine}\n## In the kernel's log\n\n{KERNEL_INTRODUCTION}\n\n{kernel}\n"


def _symptom(known: KnownError) -> str:
    shown = " or ".join(f"`{pattern.replace(GAP, ' … ').strip()}`" for pattern in known.patterns)
    return f"### {shown}\n\nMeans: {known.meaning}.\n\nDo: {known.remedy}.\n\nKnown from: {known.source}.\n\n"


KERNEL_INTRODUCTION = """Each message, its `action` in the event `kernel.message.logged`, and what to do.
`journalctl -k -b | sparkd explain` names those that are there."""


def _kernel_symptom(effect: Effect) -> str:
    meaning = effect.meaning.replace("{code}", "…").replace("{device}", "…")
    return f"- {meaning}: `{effect.action}`; {effect.hint}\n"
