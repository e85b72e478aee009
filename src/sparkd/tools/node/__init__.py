"""What people run beside the agent: measure its endpoint, choose its plan, compare it with the last good start.

Read switching.py first. The commands of cli parse their arguments and print what comes of it.
"""
