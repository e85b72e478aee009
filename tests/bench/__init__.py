"""The figures that sparkd promises, measured on a booted node: `python -m tests.bench`, as root."""
