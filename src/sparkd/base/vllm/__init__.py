"""All facts about vLLM that change with its version: arguments, flags, HTTP API, lint rules.

Read args.py first. This package is independent of nodes and recipes. lint/ reports launches that are known to fail.
"""
