"""The examination of a node before each launch: checks, the gate, the fixes as values.

Read check.py first, then runner.py. Checks read through Host alone; applying a fix is in actions.
"""
