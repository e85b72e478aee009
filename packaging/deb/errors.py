"""What stops a build."""

from __future__ import annotations


class BuildError(Exception):
    """One sentence for the person who builds."""
