"""Recipes of other tools, read by those tools' own rules and written as schema 1. Nothing of theirs is ever run."""
