"""What every package may use and that knows none of them: imports of libraries, networking, logging.

Nothing here imports another package of sparkd. Read `imports.py` first for how a library's optional parts stay out.
"""
