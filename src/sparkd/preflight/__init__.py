"""Preflight: the look at the node before each launch."""
