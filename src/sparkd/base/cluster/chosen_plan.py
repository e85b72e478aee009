"""The plan that was chosen in place of the configured one, as long as the configuration that it replaces stands."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib.errors import AwaitedError, ConfigError
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import recipe_folders
from sparkd.base.state.switch import FILE, Switch, fingerprint_engine


def current_switch(settings: Settings, host: Host) -> Switch | None:
    """The switch that replaces the configured plan, or is to; None also where the configuration has changed since.

    Raises as `load_switch`.
    """
    switch = load_switch(host, lambda _: None)
    return switch if switch is not None and switch.replaces == fingerprint_config(settings, host) else None


def load_switch(host: Host, report: Callable[[str], None]) -> Switch | None:
    """The switch in the file. `report` gets why the file is none that sparkd wrote.

    Raises AwaitedError where the file can't be read, UsageError for a user who may not read it.
    """
    try:
        return FILE.load(host.files, report)
    except OSError as error:
        usual_hint = "look at: sudo dmesg; a file that stays unreadable: move it away, and what is configured holds"
        raise AwaitedError(str(error), getattr(error, "hint", usual_hint)) from None  # a FolderError's


def fingerprint_config(settings: Settings, host: Host) -> str:
    """Fingerprint of the configuration that a chosen plan replaces."""
    recipe = None
    with suppress(ConfigError):
        recipe = load_recipe(settings.engine.recipe, recipe_folders(Path(host.files.root))).recipe
    return fingerprint_engine(settings.engine, recipe)
