"""Paths of this machine that a launch needs, as the plan has them."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from sparkd.launch.plan import LaunchPlan

OWN_FOLDERS = ("/run/sparkd/", "/var/lib/sparkd/")
"""What lies here is made by sparkd itself at the launch."""


class Needed(Enum):
    """What a path must be."""

    ANYTHING = "there"
    FILE = "a file"
    FOLDER = "a folder with something in it"
    PROGRAM = "an executable file"


class NeededPath(Struct, frozen=True):
    path: str
    what: str
    """Where it is asked for: `engine.script`, `ExecStart of ...`."""
    needed: Needed
    hint: str = ""
    may_fail: bool = False
    """Whoever asks says that its failure does not matter."""


def of_plan(plan: LaunchPlan) -> tuple[NeededPath, ...]:
    """The launch script's own source, the model, secrets, and everything that the container gets from outside."""
    found: list[NeededPath] = []
    if plan.user_script:
        found.append(NeededPath(plan.user_script, "engine.script", Needed.FILE, "write it, or empty engine.script"))
    if plan.model_path:
        hint = "put the model there, or set engine.models_dir"
        found.append(NeededPath(plan.model_path, f"the model of recipe {plan.recipe}", Needed.FOLDER, hint))
    found += [
        NeededPath(secret.file, f"secret {secret.name}", Needed.FILE, "write the secret there")
        for secret in plan.secrets
    ]
    for mount in plan.container.mounts:
        if not mount.source.startswith(OWN_FOLDERS) and mount.source != plan.model_path:
            what = f"the source of the container's {mount.target}"
            found.append(NeededPath(mount.source, what, Needed.ANYTHING, "make it, or take it out of the recipe"))
    for device in plan.container.devices:
        what = f"a device of recipe {plan.recipe}"
        found.append(NeededPath(device, what, Needed.ANYTHING, "load its driver, or take it out of the recipe"))
    return tuple(found)
