"""One module per command: arguments, output, exit code. Only this package prints for people and exits.

Read main.py first. What a command does to the machine, and what other code needs too, lives below this package.
"""
