"""The facts of one start, such as versions and values of the plan, and how two starts differ."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct, field

from sparkd.base.plan.agreement import LONGEST_TEXT, MOST_VALUES, UNCHECKED
from sparkd.base.plan.differences import Difference, diff_excerpt
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.recipes.comparison import normalize_flags
from sparkd.base.vllm.args import JsonValue

ORDER = (
    "args", "env", "image", "recipe", "entrypoint", "assert", "model", "served_name", "aliases", "secrets",
    "image.identity", "weights", "own_script", "script", "container", "caches", "node", "cluster", "supervise",
    "driver", "kernel", "docker", "sparkd", "plan_schema", "boot", "sysctl",
)  # fmt: skip
"""Names, or their parts before the first dot, likeliest cause first."""
READ_FROM_NODE = ("image.identity", "weights", "script")
"""Values that are read from the node, not from the configuration."""
MOST_FILES = 3
"""Differing weight files get a line each up to this number; more share one line."""
Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]
Texts = Annotated[Mapping[Text, Text], Meta(max_length=MOST_VALUES)]


class Facts(Struct, frozen=True):
    """Facts of one start. `unseen`: names, or their parts before the first dot, that were not read, with the reason."""

    values: Texts
    """Values that all ranks share, and this node's own; without secrets."""
    versions: Texts
    boot: Texts
    unseen: Texts = field(default_factory=dict)

    def is_unseen(self, name: str) -> bool:
        return name in self.unseen or name.partition(".")[0] in self.unseen


def node_values(plan: LaunchPlan) -> dict[str, str]:
    """Values of this node alone. Ranks may differ in them; on one node they should stay."""
    values = {
        "node.model_folder": plan.model_path,
        "node.script": plan.user_script,
        "node.interface": plan.node.interface,
        "node.hcas": ",".join(plan.node.hcas),
        "node.memory_bytes": "" if plan.memory_bytes is None else str(plan.memory_bytes),
    }
    return {name: text for name, text in values.items() if text}


def find_differences(earlier: Facts, current: Facts) -> tuple[Difference, ...]:
    """Differences, each with the earlier value as `own` and the current one as `theirs`."""
    earlier_values, current_values = _normalize(earlier), _normalize(current)
    differences = []
    for name in earlier_values.keys() | current_values.keys():
        old_value, old_text = earlier_values.get(name, (None, ""))
        new_value, new_text = current_values.get(name, (None, ""))
        if old_value != new_value and not (earlier.is_unseen(name) or current.is_unseen(name)):
            differences.append(Difference(name, old_text, new_text))
    for old, new in ((earlier.versions, current.versions), (earlier.boot, current.boot)):
        # A value that only one of them has is not known to differ.
        differences += [
            Difference(name, old[name], new[name]) for name in old.keys() & new.keys() if old[name] != new[name]
        ]
    return tuple(sorted(differences, key=lambda difference: (_find_place(difference.name), difference.name)))


def _normalize(facts: Facts) -> dict[str, tuple[str, str]]:
    """Pairs by the name that is compared: the normalized value, and its text for people."""
    values: dict[str, tuple[str, str]] = {}
    for raw, text in facts.values.items():
        name = raw.removeprefix(UNCHECKED)
        section, _, flag = name.partition(".")
        if section != "args" or not flag:
            values[name] = text, text or '""'
            continue
        parsed: JsonValue = {"true": True, "false": False}.get(text, text)
        for positive, value in normalize_flags({flag: parsed}).items():
            display = json.dumps(value) if isinstance(value, bool) else text or '""'
            values[f"args.{positive}"] = json.dumps(value, sort_keys=True, ensure_ascii=False), display
    return values


def _find_place(name: str) -> int:
    """Position in ORDER."""
    return next((ORDER.index(known) for known in (name, name.partition(".")[0]) if known in ORDER), len(ORDER))


def group_files(differences: Sequence[Difference]) -> tuple[Difference, ...]:
    """Differences for people: many weight files become one line."""
    files = [file for file in differences if file.name.startswith("weights.")]
    if len(files) <= MOST_FILES:
        return tuple(differences)
    names = ", ".join(file.name.removeprefix("weights.") for file in files[:MOST_FILES])
    text = f"{len(files)} files differ: {names} and {len(files) - MOST_FILES} more"
    first = differences.index(files[0])
    grouped = Difference("weights", "as they were", text)
    return *differences[:first], grouped, *(other for other in differences[first:] if other not in files)


def excerpt_values(difference: Difference) -> tuple[str, str]:
    """Both values, bounded, from shortly before the first differing character."""
    earlier, current = diff_excerpt(difference)
    return earlier or "not set", current or "not set"
