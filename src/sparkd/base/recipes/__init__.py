"""Reads recipes from YAML: schema, lookup, inheritance, differences.

Read schema.py first. This package is independent of nodes, ranks and plans.
"""
