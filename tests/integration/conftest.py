"""Tests of agents on loopback need a machine to look at, the unit tests' tree of files, and a port."""

from tests.unit.conftest import port, tree

__all__ = ["port", "tree"]
