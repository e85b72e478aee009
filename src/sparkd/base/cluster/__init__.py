"""A node among others: its rank and role, the head that it follows, the cluster's key.

Read membership.py first. Nothing here opens a connection or changes the machine.
"""
