"""A bed of nodes: real systemd and real docker, booted on this machine and gone without a trace."""

from .bed import Bed
from .command import BedError
from .node import Node

__all__ = ["Bed", "BedError", "Node"]
