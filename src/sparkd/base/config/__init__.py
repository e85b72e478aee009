"""Settings of a node: types, sources merged with their origins, reference texts; and the generated unit files.

Read settings.py first. Every other package gets a `Settings` value and never reads a file or variable itself.
"""

from sparkd.base.config.settings import Engine, Notify, Settings
from sparkd.base.config.sources import LoadedSettings, load_settings, load_with_origins

__all__ = ["Engine", "LoadedSettings", "Notify", "Settings", "load_settings", "load_with_origins"]
