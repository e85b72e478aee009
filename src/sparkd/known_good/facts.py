"""What a start is made of, and where two differ: by meaning, what most likely matters first. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from sparkd.flags import JsonValue
from sparkd.launch import agreement
from sparkd.launch.agreement import UNCHECKED, Difference
from sparkd.launch.plan import LaunchPlan
from sparkd.recipes import meaning

ORDER = (
    "args", "env", "image", "recipe", "entrypoint", "assert", "model", "served_name", "secrets", "image.identity",
    "weights", "own_script", "script", "container", "caches", "node", "cluster", "supervise",
    "driver", "kernel", "docker", "sparkd", "plan_schema", "boot", "sysctl",
)  # fmt: skip
"""Names, or what stands before their first dot, as they are told."""
LOOKED_AT = ("image.identity", "weights", "script")
"""What only a look at the node tells."""
MOST_FILES = 3
"""Files of the weights that differ, each in a line of its own; more are one line."""
WIDTH = 56
NOT_SET = "not set"


class Facts(Struct, frozen=True):
    """Of one start. A name that `unseen` has, or has up to its first dot, was not looked at: the text says why."""

    values: Mapping[str, str]
    """What all ranks share, less every secret, and what is this node's own."""
    versions: Mapping[str, str]
    boot: Mapping[str, str]
    unseen: Mapping[str, str] = field(default_factory=dict)

    def unseen_for(self, name: str) -> bool:
        return name in self.unseen or name.partition(".")[0] in self.unseen


def own(plan: LaunchPlan) -> dict[str, str]:
    """What a node fills in for itself: the ranks may differ in it, a node from one day to the next should not."""
    said = {
        "node.model_folder": plan.model_path,
        "node.script": plan.user_script,
        "node.interface": plan.node.interface,
        "node.hcas": ",".join(plan.node.hcas),
        "node.memory_bytes": "" if plan.memory_bytes is None else str(plan.memory_bytes),
    }
    return {name: text for name, text in said.items() if text}


def differences(then: Facts, now: Facts) -> tuple[Difference, ...]:
    """Each with the value of then as `own` and that of now as `theirs`; empty where there is none."""
    before, after = _values(then), _values(now)
    unlike = [
        Difference(name, _text(before.get(name)), _text(after.get(name)))
        for name in before.keys() | after.keys()
        if not (then.unseen_for(name) or now.unseen_for(name)) and _meant(before.get(name)) != _meant(after.get(name))
    ]
    for old, new in ((then.versions, now.versions), (then.boot, now.boot)):
        # What one of the two does not tell is not known to differ.
        unlike += [Difference(name, old[name], new[name]) for name in old.keys() & new.keys() if old[name] != new[name]]
    return tuple(sorted(unlike, key=lambda one: (_place(one.name), one.name)))


def _values(facts: Facts) -> dict[str, tuple[str, str]]:
    """What each value means, and its text, by the name under which it is compared."""
    found: dict[str, tuple[str, str]] = {}
    for raw, text in facts.values.items():
        name = raw.removeprefix(UNCHECKED)
        head, _, flag = name.partition(".")
        if head != "args" or not flag:
            found[name] = text, text
            continue
        for positive, value in meaning.flags({flag: _flag_value(text)}).items():
            shown = json.dumps(value) if isinstance(value, bool) else text
            found[f"args.{positive}"] = json.dumps(value, sort_keys=True, ensure_ascii=False), shown
    return found


def _flag_value(text: str) -> JsonValue:
    return {"true": True, "false": False}.get(text, text)


def _meant(value: tuple[str, str] | None) -> str | None:
    return None if value is None else value[0]


def _text(value: tuple[str, str] | None) -> str:
    return "" if value is None else value[1] or '""'


def _place(name: str) -> int:
    for known in (name, name.partition(".")[0]):
        if known in ORDER:
            return ORDER.index(known)
    return len(ORDER)


def gathered(found: Sequence[Difference]) -> tuple[Difference, ...]:
    """The same for people: many files of the weights as one line."""
    files = [one for one in found if one.name.startswith("weights.")]
    if len(files) <= MOST_FILES:
        return tuple(found)
    names = ", ".join(one.name.removeprefix("weights.") for one in files[:MOST_FILES])
    told = Difference(
        "weights", "as they were", f"{len(files)} files differ: {names} and {len(files) - MOST_FILES} more"
    )
    at = found.index(files[0])
    return (*found[:at], told, *(one for one in found[at:] if one not in files))


def shown(one: Difference) -> tuple[str, str]:
    """Both values, bounded, from shortly before the first character that differs."""
    then, now = agreement.pair(one, WIDTH)
    return then or NOT_SET, now or NOT_SET
