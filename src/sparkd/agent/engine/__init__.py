"""One running rank: its log, readiness, health, memory guard, and the cause of its end.

Read rank.py first. The agent orders the steps; actions starts and stops containers.
"""
