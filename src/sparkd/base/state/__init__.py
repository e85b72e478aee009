"""State that is kept between processes, in files below /var/lib/sparkd and /run: types, reading, rules.

Read file.py first. Writing is in actions; the agent decides when.
"""
