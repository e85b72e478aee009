"""The daemon: one process runs one launch of this node's rank.

Read run.py first: it is the whole run in one screen. Checks, docker calls and file formats live below this package.
"""
