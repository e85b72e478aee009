"""The layers, beyond what the import contracts in pyproject.toml can say (decision 0062)."""

from pathlib import Path

from tests.count.__main__ import RUN
from tests.count.source import import_closure, read_modules

import sparkd

ACT_ON_DOCKERD = {"agent/actions/image_archive.py", "agent/actions/image_builder.py"}
"""Commands alone need them, and `actions` alone may import docker's client that changes something."""


def test_the_daemon_reaches_each_module_of_the_agent() -> None:
    modules = read_modules(Path(sparkd.__path__[0]))
    reached = {module.path for module in import_closure(modules, *RUN)}
    assert {module.path for module in modules if module.layer == "agent"} - reached == ACT_ON_DOCKERD
