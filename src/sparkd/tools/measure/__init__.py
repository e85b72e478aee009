"""A served endpoint, measured as its clients see it: whether its answers make sense, how fast they are.

Read smoke.py first. Nothing here changes a machine or reads its files.
"""
