"""Preflight: the look at the node before each launch. Every check is named here, in the order in which they run."""

from __future__ import annotations

from sparkd.preflight.memory import UnifiedMemory
from sparkd.preflight.page_cache import PageCache
from sparkd.preflight.scripts import ScriptPaths
from sparkd.preflight.shm import SharedMemory
from sparkd.preflight.strays import StrayWorkers

CHECKS = (ScriptPaths, StrayWorkers, SharedMemory, PageCache, UnifiedMemory)
IDS = tuple(check.id for check in CHECKS)
