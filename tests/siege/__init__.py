"""A siege: faults of all kinds, drawn from a seed, on two nodes that serve, and rules that hold all along."""
