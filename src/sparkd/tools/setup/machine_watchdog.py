"""A machine that freezes resets itself: systemd keeps the hardware's watchdog from it, and a panic ends in a reboot.

Not by kernel.hung_task_panic: a task that waits for a driver, a disk or a file server is no freeze.
"""

from __future__ import annotations

from pathlib import Path

from sparkd.agent.actions import files
from sparkd.base.host import kernel
from sparkd.base.host.files import Files
from sparkd.base.recipes.schema import Recipe
from sparkd.tools.setup.system_config import HEADER, UnitFiles, own_content, remove, write

DROPIN = "/etc/systemd/system.conf.d/50-sparkd.conf"
TEXT = f"{HEADER}; `sparkd tune revert` removes it.\n[Manager]\nRuntimeWatchdogSec=60\n"
"""Served every 30 s. A machine that runs out of memory may stand still for tens of seconds, and recover."""
PANIC = {"kernel.panic": "30", "kernel.panic_on_oops": "1"}
"""30 s leave pstore and a console the time for the kernel's last words."""


def apply_watchdog(root: Path) -> list[str]:
    """The changes, or why there is none. Raises ConfigError where somebody else's file has the name; UsageError."""
    with files.locked(root):
        content, machine = own_content(Files(str(root)), DROPIN), kernel.read_recovery(Files(str(root)))
        if not machine.watchdog:
            return ["this machine has no watchdog: if it freezes, its power must be cut"]
        if content is None and machine.active:
            return [f"the watchdog ({machine.watchdog}) is in use by something else: nothing is to be done"]
        if content == TEXT.encode():
            return []
        write(root, DROPIN, TEXT)
        UnitFiles(root).daemon_reload()
        return [f"wrote {DROPIN}: the watchdog ({machine.watchdog}) resets a frozen machine"]


def revert_watchdog(root: Path) -> list[str]:
    """The changes. Raises as `apply_watchdog`."""
    with files.locked(root):
        if own_content(Files(str(root)), DROPIN) is None:
            return []
        remove(root, DROPIN)
        UnitFiles(root).daemon_reload()
        return [f"removed {DROPIN}"]


def with_panic(recipe: Recipe) -> Recipe:
    """The recipe with the kernel's settings too, which no recipe may have of its own."""
    sysctls = {**recipe.host.sysctls, **PANIC}
    source = f"{', '.join(PANIC)}: --watchdog" + (f"; the others: {recipe.source}" if recipe.host.sysctls else "")
    host = recipe.host.model_copy(update={"sysctls": sysctls})
    return recipe.model_copy(update={"host": host, "source": source})
