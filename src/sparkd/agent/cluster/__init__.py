"""The other nodes: membership and rank, key and signatures, the peer API, its client, the monitor of peers.

Read membership.py first. Nothing here changes the machine or waits for an engine.
"""
