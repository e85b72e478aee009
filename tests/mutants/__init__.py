"""Whether the unit tests notice small faults in the source: `make mutants`."""
