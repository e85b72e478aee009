"""A machine that resets itself: the hardware's watchdog served by systemd, and a reboot after a panic."""

from pathlib import Path

from sparkd.base.host import kernel
from sparkd.base.host.files import Files
from sparkd.base.recipes.schema import Recipe
from sparkd.tools.node.command_lock import hold_command_lock
from sparkd.tools.setup.sysctl import HEADER, own_text
from sparkd.tools.setup.unit_files import UnitFiles, remove, write

WATCHDOG_DROPIN = "/etc/systemd/system.conf.d/50-sparkd.conf"
WATCHDOG_TEXT = f"{HEADER}; `sparkd tune revert` removes it.\n[Manager]\nRuntimeWatchdogSec=60\n"
"""systemd serves the hardware's watchdog, which resets a machine that freezes. It has 60 s and is served every 30 s,
since a machine that runs out of memory may stand still for tens of seconds, and recover."""
PANIC = {"kernel.panic": "30", "kernel.panic_on_oops": "1"}
"""A panic ends in a reboot after 30 s, in which pstore and a console can take the kernel's last messages. Without
kernel.hung_task_panic: a task that waits for a driver, a disk or a file server is no freeze."""


def apply_watchdog(root: Path) -> list[str]:
    """Let systemd serve the watchdog, and return lines on the change, or on why there is none.

    Raises ConfigError where somebody else's file has the name, UsageError.
    """
    with hold_command_lock(root):
        file_text, recovery = own_text(root, WATCHDOG_DROPIN), kernel.read_recovery(Files(str(root)))
        if not recovery.watchdog:
            return ["this machine has no watchdog: if it freezes, its power must be cut"]
        if file_text is None and recovery.active:
            return [f"the watchdog ({recovery.watchdog}) is in use by something else: nothing is to be done"]
        if file_text == WATCHDOG_TEXT:
            return []
        write(root, WATCHDOG_DROPIN, WATCHDOG_TEXT)
        UnitFiles(root).daemon_reload()
        return [f"wrote {WATCHDOG_DROPIN}: the watchdog ({recovery.watchdog}) resets a frozen machine"]


def revert_watchdog(root: Path) -> list[str]:
    """Remove the file, and return lines on the change. Raises as `apply_watchdog`."""
    with hold_command_lock(root):
        if own_text(root, WATCHDOG_DROPIN) is None:
            return []
        remove(root, WATCHDOG_DROPIN)
        UnitFiles(root).daemon_reload()
        return [f"removed {WATCHDOG_DROPIN}"]


def with_panic(recipe: Recipe) -> Recipe:
    """The recipe with the settings of PANIC, which no recipe may set by itself."""
    sysctls = {**recipe.host.sysctls, **PANIC}
    source = f"{', '.join(PANIC)}: --watchdog" + (f"; the others: {recipe.source}" if recipe.host.sysctls else "")
    host = recipe.host.model_copy(update={"sysctls": sysctls})
    return recipe.model_copy(update={"host": host, "source": source})
