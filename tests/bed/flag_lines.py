"""Command lines of `vllm serve`, good and bad, made from the table of its flags."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

from sparkd.base.vllm.args import JsonValue
from sparkd.base.vllm.flag import Flag, Kind
from sparkd.base.vllm.releases import find_release

TABLE = find_release("0.32")
"""Of the bed's engine."""
FLAGS, FIELDS = TABLE.flags, TABLE.fields

START = ("serve", "/models/m")
GOOD: dict[Kind, tuple[str, ...]] = {
    "text": ("abc", "", "two words", "{x}", "--not-a-flag", "-1"),
    "text or object": ("abc", "{}", '{"a": {"b": 1}}', " {} "),
    "int": ("0", "17", "-3", "1_000", " 5 ", "007"),
    "amount": ("8192", "8k", "8K", "25.6k", " 2M "),
    "amount or auto": ("8192", "8k", "1M", "auto", "AUTO", "-1"),
    "float": ("1", "0.9", ".5", "1e-3", "inf"),
    "json": ("{}", '{"a": [1, null]}', "{}\n"),
    "object": (),  # what its fields are is not in the table
}
BAD: dict[Kind, tuple[str, ...]] = {
    "text or object": ("{x}", "{'a': 1}", '{"a": }'),
    "int": ("abc", "1.5", "8k", "1e3", "0x10", "auto", "--x"),
    "amount": ("abc", "1.5", "1.5K", "8 k", "8kb", "auto"),
    "amount or auto": ("abc", "1.5", "1.5K", "8kb", "-2k"),
    "float": ("abc", "0,9", "90%", "1k"),
    "json": ("{x}", "{'a': 1}", "{“a”: 1}", '{"a": 1', "abc"),
    "object": ("{x}", "{'a': 1}", "[]", "abc", "7"),
}
SKIPPED = ("model", "config", "lora-modules", "compilation-config")
"""The parser does more with the first three than to read them; older builds take a number for the last."""
NAMES = (
    "max-model-length", "enable-prefix-cache", "gpu-memory", "maxx-num-seqs", "tp", "prefix-caching", "no-max-num-seqs",
    "swap-space", "enable-log", "no-disable-log-stats", "moe-backends", "gpu-memory-utilisation", "no-enforce-eagre",
    "max-num-batched-tokens-", "data-parallel", "prefill", "max-num-seqs.x.y", "max_num_seq_", "no-trust", "quantize",
)  # fmt: skip


def lines(seed: int, count: int) -> Iterator[tuple[str, ...]]:
    """`count` lines of one to four flags, of which about half hold one fault."""
    random = Random(seed)
    flags = [flag for flag in FLAGS if flag.name not in SKIPPED and flag.kind != "object"]
    for number in range(count):
        chosen = [_good(flag, random) for flag in random.sample(flags, random.randint(0, 3))]
        chosen.insert(
            random.randint(0, len(chosen)), _bad(random) if number % 2 else _good(random.choice(flags), random)
        )
        yield (*START, *(word for words in chosen for word in words))


def wrong_fields() -> Iterator[tuple[str, ...]]:
    """For each field of a flag that the parser itself reads as a class: values that it does not take; and odd keys."""
    for flag in (one for one in FLAGS if one.kind == "object" and one.name in FIELDS):
        yield (*START, f"--{flag.name}", '{"no_such_key": 1}')
        for field in FIELDS[flag.name]:
            values: list[JsonValue] = ["abc", [{}], {"no_such_key": {}}, 1.5]
            for value in values:
                if field.wrong_value(value):
                    table: JsonValue = value
                    for part in reversed(field.name.split(".")):
                        table = {part: table}
                    yield (*START, f"--{flag.name}", json.dumps(table))


def _good(flag: Flag, random: Random) -> list[str]:
    name = f"--{flag.name.replace('-', random.choice('-_'))}"
    if flag.kind == "switch":
        return [f"--no-{flag.name}" if flag.negative and random.random() < 0.5 else name]
    values = flag.choices or (*GOOD[flag.kind], *(("", "None") if flag.optional else ()))
    if flag.count == "at least one" and random.random() < 0.5:
        return [name, *(value for value in random.choices(values, k=3) if not value.startswith("-"))]
    if flag.count == "at most one" and random.random() < 0.5:
        return [name]
    return _given(name, random.choice(values), random)


def _bad(random: Random) -> list[str]:
    kinds = [_wrong_type, _wrong_choice, _wrong_count, _wrong_name]
    return random.choice(kinds)(random)


def _wrong_type(random: Random) -> list[str]:
    flag = random.choice([flag for flag in FLAGS if flag.kind in BAD and flag.name not in SKIPPED])
    return _given(f"--{flag.name}", random.choice(BAD[flag.kind]), random)


def _wrong_choice(random: Random) -> list[str]:
    flag = random.choice([flag for flag in FLAGS if flag.choices])
    wrong = (
        "7" if flag.kind == "int" else random.choice((f"{flag.choices[0]}x", "", "None", "FULL", flag.choices[-1][:-1]))
    )
    return _given(f"--{flag.name}", wrong, random)


def _wrong_count(random: Random) -> list[str]:
    flag = random.choice([flag for flag in FLAGS if flag.count == "one" and flag.name not in SKIPPED])
    if flag.kind == "switch":
        return random.choice(([f"--{flag.name}", "true"], [f"--{flag.name}=true"], [f"--{flag.name}="]))
    return random.choice(([f"--{flag.name}"], [f"--{flag.name}", "1", "2"]))


def _wrong_name(random: Random) -> list[str]:
    return random.choice(([f"--{random.choice(NAMES)}"], [f"--{random.choice(NAMES)}", "1"]))


def _given(name: str, value: str, random: Random) -> list[str]:
    return [f"{name}={value}"] if value.startswith("-") or random.random() < 0.5 else [name, value]
