"""known-good.json: plans proven in service, newest first, with the facts of their starts."""

import re
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import force_setattr, replace

from sparkd.base.host.files import Files
from sparkd.base.plan.agreement import LONGEST_TEXT, UNCHECKED
from sparkd.base.state.facts import Facts
from sparkd.base.state.file import LIMIT_BYTES, Report, StateFile, ignore_report

KEPT = 8
"""Plans in the file."""
Plain = Annotated[str, Meta(max_length=LONGEST_TEXT, pattern=r"\A[ -~]*\Z")]
ImageId = Annotated[str, Meta(max_length=LONGEST_TEXT, pattern=r"\A(?:[a-z0-9]+:[a-z0-9]+)?\Z")]
"""An image id that may go into a request to docker; empty is none."""
DIGEST = re.compile(r"[a-z0-9][a-z0-9._:/-]{0,254}@sha256:[0-9a-f]{64}")


class Entry(Struct, frozen=True, rename={"plan_digest": "plan", "agreement_digest": "agreement"}):
    """A proven plan, some 20 KiB, more with a model of many files. Stamps are UTC, ISO 8601."""

    since: Plain
    """First proven."""
    until: Plain
    """Last proven."""
    plan_digest: Plain
    """Digest of settings and recipe."""
    agreement_digest: Plain
    """Digest of the plan, the image, the weights and the script."""
    image_id: ImageId
    facts: Facts
    recipe: dict[str, object]
    """The recipe as JSON. With `engine`, the section of the settings, it makes the plan again."""
    engine: dict[str, object]
    image_digest: str = ""
    """Name by which a registry gives this very image, of the form DIGEST, safe in a shell; empty: none is known."""

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
        # The second where the nodes' images may differ (cluster.allow_image_difference).
        return values.get("image") or values.get(f"{UNCHECKED}image", "")


class KnownGood(Struct, frozen=True):
    known_good: tuple[Entry, ...] = ()


FILE = StateFile(KnownGood, "known-good.json")


def read_known_good(files: Files, report: Report = ignore_report) -> tuple[Entry, ...]:
    """The entries; none where there is no usable file. Raises OSError."""
    return (FILE.load(files, report) or KnownGood()).known_good


def add_proven(known: Sequence[Entry], proven: Entry) -> KnownGood:
    """The file's content with `proven` as its newest entry, also where the plan was proven before.

    Where the file would be too large, the oldest entries are left out; if `proven` alone is, nothing changes.
    """
    key = proven.agreement_digest, proven.image_id
    same = [plan for plan in known if (plan.agreement_digest, plan.image_id) == key]
    others = [plan for plan in known if plan not in same]
    if same:
        proven = replace(proven, since=same[0].since, image_digest=proven.image_digest or same[0].image_digest)
    plans = (proven, *others)[:KEPT]
    contents = (KnownGood(plans[:count]) for count in range(len(plans), 0, -1))
    return next((content for content in contents if len(FILE.encode(content)) <= LIMIT_BYTES), KnownGood(tuple(known)))


def images_to_keep(known: Sequence[Entry]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Ids of the plans' images, the newest first; and the first two of them.

    In docker each of them gets a name of sparkd's, and the two a container as well, without which an image goes with
    its last name.
    """
    images = tuple(dict.fromkeys(entry.image_id for entry in known if entry.image_id))
    return images, images[:2]
