"""This node from the command line: its plan chosen, its endpoint, what its next start would find.

Read switching.py first. The commands of cli parse their arguments and print what comes of it.
"""
