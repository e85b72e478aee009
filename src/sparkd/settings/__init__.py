"""Settings of a node: `load` reads them, `Settings` is what every other module gets."""

from sparkd.settings.model import (
    Cluster,
    Engine,
    Fabric,
    Log,
    Memory,
    Observe,
    Preflight,
    Readiness,
    Settings,
    Supervise,
)
from sparkd.settings.sources import Loaded, load, load_with_origins

__all__ = [
    "Cluster",
    "Engine",
    "Fabric",
    "Loaded",
    "Log",
    "Memory",
    "Observe",
    "Preflight",
    "Readiness",
    "Settings",
    "Supervise",
    "load",
    "load_with_origins",
]
