"""known-good.json: plans proven in service, newest first, with the facts of their starts; and how two starts differ."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr, replace

from sparkd.base.host.files import Files
from sparkd.base.lib.text import sanitize
from sparkd.base.plan import agreement
from sparkd.base.plan.agreement import LONGEST_TEXT, MOST_VALUES, UNCHECKED, VALUE_WIDTH, Difference
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.recipes.comparison import normalize_flags
from sparkd.base.state.file import LIMIT_BYTES, Report, StateFile, ignore_report
from sparkd.base.vllm.args import JsonValue

ORDER = (
    "args", "env", "image", "recipe", "entrypoint", "assert", "model", "served_name", "secrets", "image.identity",
    "weights", "own_script", "script", "container", "caches", "node", "cluster", "supervise",
    "driver", "kernel", "docker", "sparkd", "plan_schema", "boot", "sysctl",
)  # fmt: skip
"""Names, or their parts before the first dot, likeliest cause first."""
LOOKED_AT = ("image.identity", "weights", "script")
"""Values that are read from the node, not from the configuration."""
MOST_FILES = 3
"""Differing weight files get a line each up to this number; more share one line."""
KEPT = 8
"""Plans in the file."""
Plain = Annotated[str, Meta(max_length=LONGEST_TEXT, pattern=r"\A[ -~]*\Z")]
ImageId = Annotated[str, Meta(max_length=LONGEST_TEXT, pattern=r"\A(?:[a-z0-9]+:[a-z0-9]+)?\Z")]
"""An image id that may go into a request to docker; empty is none."""
DIGEST = re.compile(r"[a-z0-9][a-z0-9._:/-]{0,254}@sha256:[0-9a-f]{64}")
Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]
Texts = Annotated[Mapping[Text, Text], Meta(max_length=MOST_VALUES)]


class Facts(Struct, frozen=True):
    """Facts of one start. `unseen`: names, or their parts before the first dot, that were not read, with the reason."""

    values: Texts
    """Values that all ranks share, and this node's own; without secrets."""
    versions: Texts
    boot: Texts
    unseen: Texts = field(default_factory=dict)

    def unseen_for(self, name: str) -> bool:
        return name in self.unseen or name.partition(".")[0] in self.unseen


class Entry(Struct, frozen=True):
    """A proven plan, some 20 KiB, more with a model of many files. Stamps are UTC, ISO 8601."""

    since: Plain
    """First proven."""
    until: Plain
    """Last proven."""
    plan: Plain
    """Digest of settings and recipe."""
    agreement: Plain
    """Digest of the plan, the image, the weights and the script."""
    image_id: ImageId
    facts: Facts
    recipe: dict[str, object]
    """The recipe as JSON. With `engine`, the section of the settings, it makes the plan again."""
    engine: dict[str, object]
    image_digest: str = ""
    """Of the form DIGEST, safe in a shell: a registry gives this very image by it. Empty where none is known to."""

    def __post_init__(self) -> None:
        # Docker also takes a registry's name with capitals, and [::1]. Such a digest is left out: as an error it would
        # make the whole file unusable.
        if not DIGEST.fullmatch(self.image_digest):
            force_setattr(self, "image_digest", "")

    @property
    def name(self) -> str:
        return str(self.recipe.get("name", "?"))

    @property
    def image(self) -> str:
        """The name that its image had."""
        values = self.facts.values
        return values.get("image") or values.get(f"{UNCHECKED}image", "")


class History(Struct, frozen=True):
    known_good: tuple[Entry, ...] = ()


FILE = StateFile("known-good.json", History)


def format_utc(stamp: str) -> str:
    """The stamp for people, to the minute."""
    return f"{sanitize(stamp[:16]).replace('T', ' ')} UTC"


def read_known_good(files: Files, report: Report = ignore_report) -> tuple[Entry, ...]:
    """The entries; none where there is no usable file. Raises OSError."""
    return (FILE.load(files, report) or History()).known_good


def add_proven(known: Sequence[Entry], proven: Entry) -> History:
    """The history with `proven` as its newest entry, also where the plan was proven before.

    Where the file would be too large, the oldest entries are left out; if `proven` alone is, nothing changes.
    """
    same = [plan for plan in known if (plan.agreement, plan.image_id) == (proven.agreement, proven.image_id)]
    others = [plan for plan in known if plan not in same]
    if same:
        proven = replace(proven, since=same[0].since, image_digest=proven.image_digest or same[0].image_digest)
    plans = (proven, *others)[:KEPT]
    histories = (History(plans[:count]) for count in range(len(plans), 0, -1))
    return next((history for history in histories if len(FILE.encode(history)) <= LIMIT_BYTES), History(tuple(known)))


def images_to_keep(known: Sequence[Entry]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Ids of images that keep a name of sparkd's, and those of them that a container keeps too: the last two."""
    images = tuple(dict.fromkeys(entry.image_id for entry in known if entry.image_id))
    return images, images[:2]


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
        (earlier_value, earlier_text), (current_value, current_text) = (
            values.get(name, (None, "")) for values in (earlier_values, current_values)
        )
        if earlier_value != current_value and not earlier.unseen_for(name) and not current.unseen_for(name):
            differences.append(Difference(name, earlier_text, current_text))
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
    earlier, current = agreement.diff_excerpt(difference, VALUE_WIDTH)
    return earlier or "not set", current or "not set"
