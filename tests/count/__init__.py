"""Figures of the source: `make count`."""
