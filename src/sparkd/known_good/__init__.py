"""Starts that are known good: the history of them, what differs from the last one, and the way back to it."""
