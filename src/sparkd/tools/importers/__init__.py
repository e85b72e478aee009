"""Converts recipes of other tools to schema 1, by those tools' own rules. Never runs any of their code."""
