"""The plan that was chosen in place of the configured one, as long as the configuration that it replaces stands."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib.errors import AwaitedError, ConfigError
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import recipe_folders
from sparkd.base.state.file import FolderError
from sparkd.base.state.switch import FILE, Switch, fingerprint_engine


def current_switch(settings: Settings, host: Host) -> Switch | None:
    """The switch that replaces the configured plan, or will at the next start.

    None also where the configuration has changed since it was chosen.

    Raises as `load_switch`.
    """
    switch = load_switch(host, lambda _: None)
    return switch if switch is not None and switch.replaces == fingerprint_config(settings, host) else None


def load_switch(host: Host, report: Callable[[str], None]) -> Switch | None:
    """The switch in the file. `report` gets a line where the file is not one that sparkd wrote.

    Raises AwaitedError where the file can't be read, UsageError for a user who may not read it.
    """
    try:
        return FILE.load(host.files, report)
    except OSError as error:
        hint = "look at: sudo dmesg; a file that stays unreadable: move it away, and what is configured holds"
        raise AwaitedError(str(error), error.hint if isinstance(error, FolderError) else hint) from None


def fingerprint_config(settings: Settings, host: Host) -> str:
    """Fingerprint of the configuration that a chosen plan replaces."""
    recipe = None
    with suppress(ConfigError):
        recipe = load_recipe(settings.engine.recipe, recipe_folders(Path(host.files.root))).recipe
    return fingerprint_engine(settings.engine, recipe)
