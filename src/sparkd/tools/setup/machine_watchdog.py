"""A machine that freezes resets itself: systemd keeps the hardware's watchdog from it, and a panic ends in a reboot.

Not by kernel.hung_task_panic: a task that waits for a driver, a disk or a file server is no freeze.
"""

from __future__ import annotations

from pathlib import Path

from sparkd.agent.actions import files
from sparkd.base.host import kernel
from sparkd.base.host.files import Files
from sparkd.base.recipes.schema import Recipe
from sparkd.tools.setup.system_config import HEADER, SysctlManager, UnitFiles, own_content, remove, write

DROPIN = "/etc/systemd/system.conf.d/50-sparkd.conf"
TEXT = f"{HEADER}; `sparkd tune revert` removes it.\n[Manager]\nRuntimeWatchdogSec=60\n"
"""Systemd asks for half that. A machine that runs out of memory may stand still for tens of seconds, and recover."""
PANIC = {"kernel.panic": "30", "kernel.panic_on_oops": "1"}
"""30 s leave pstore and a console the time for the kernel's last words."""
APPLY_HINT = "sudo sparkd tune apply --watchdog"


class MachineWatchdog:
    """The machine below `root`. Methods that change it raise UsageError where this user may not."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._files = Files(str(root))

    def apply(self) -> list[str]:
        """Returns the changes, or why there is none. Raises ConfigError where somebody else's file has the name."""
        with files.locked(self._root):
            content, device = own_content(self._files, DROPIN), kernel.read_recovery(self._files).watchdog
            if device is None:
                return ["this machine has no watchdog: if it freezes, its power must be cut"]
            if content is None and device.active:
                return [f"the watchdog ({device.name}) is in use by something else, which stays: nothing is to be done"]
            if content == TEXT.encode():
                return []
            write(self._root, DROPIN, TEXT)
            UnitFiles(self._root).daemon_reload()
            return [f"wrote {DROPIN}: the watchdog ({device.name}) resets a frozen machine"]

    def revert(self) -> list[str]:
        """Returns the changes. Raises ConfigError as `apply`."""
        with files.locked(self._root):
            if own_content(self._files, DROPIN) is None:
                return []
            remove(self._root, DROPIN)
            UnitFiles(self._root).daemon_reload()
            return [f"removed {DROPIN}"]

    def describe(self) -> str:
        recovery = kernel.read_recovery(self._files)
        set_here = own_content(self._files, DROPIN) is not None or recovery.complete
        return recovery.text + ("" if set_here else f"; to have it reset itself: {APPLY_HINT}")


def chosen_before(manager: SysctlManager) -> bool:
    """Whether `tune apply --watchdog` holds: until `revert`, no other `apply` takes it back."""
    return PANIC.keys() <= manager.saved().keys()


def with_panic(recipe: Recipe) -> Recipe:
    """The recipe with the kernel's settings too, which no recipe may have of its own."""
    sysctls = {**recipe.host.sysctls, **PANIC}
    source = f"{', '.join(PANIC)}: --watchdog" + (f"; the others: {recipe.source}" if recipe.host.sysctls else "")
    host = recipe.host.model_copy(update={"sysctls": sysctls})
    return recipe.model_copy(update={"host": host, "source": source})
