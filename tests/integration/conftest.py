"""Tests of agents on loopback need a machine to look at: the unit tests' tree of files."""

from tests.unit.conftest import tree

__all__ = ["tree"]
