"""What `sparkd init` and `deinit` do: what is on the node, which recipe and nodes, what is written, and the way back.

`wizard.py` has the order; it shows and prompts by what it was given.
"""
