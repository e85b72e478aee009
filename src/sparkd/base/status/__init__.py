"""The NodeReport: its parts, its publication, what a person sees of it.

Read model.py first. What a report says is decided in agent.daemon.
"""
