"""Computes the LaunchPlan from recipe, settings and node: its script, its digest, its differences from a peer's.

Read model.py first, then build.py. Only fingerprint.py reads the node, through Host.
"""
