"""The other nodes: the peer API, its client, the monitor of peers, their inventories and journals.

Read service.py first. Nothing here changes the machine or waits for an engine.
"""
