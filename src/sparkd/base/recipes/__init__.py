"""Reads recipes from YAML: schema, lookup, inheritance, differences. importers/ converts recipes of other tools.

Read schema.py first. This package is independent of nodes, ranks and plans.
"""
