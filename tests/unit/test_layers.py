"""The layers, beyond what the import contracts in pyproject.toml can say (decision 0062)."""

import tomllib

from tests.count.__main__ import ROOT, RUN, SOURCE
from tests.count.source import import_closure, read_modules

from sparkd.tools.cli.main import COMMANDS

ACT_ON_DOCKERD = {"agent/actions/image_archive.py", "agent/actions/image_builder.py"}
"""Commands alone need them, and `actions` alone may import docker's client that changes something."""


def test_the_daemon_reaches_each_module_of_the_agent() -> None:
    modules = read_modules(ROOT / SOURCE)
    reached = {module.path for module in import_closure(modules, *RUN)}
    assert {module.path for module in modules if module.layer == "agent"} - reached == ACT_ON_DOCKERD


def test_the_contract_of_the_commands_lists_all_of_them() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (listed,) = (contract["modules"] for contract in contracts if contract["type"] == "independence")
    assert listed == sorted({f"sparkd.tools.cli.{module}" for _, module, _ in COMMANDS})
