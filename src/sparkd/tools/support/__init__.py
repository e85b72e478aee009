"""What a helper needs of a node, packed without secrets.

Read capture_tree.py first: what it packs, the checks can read elsewhere.
"""
