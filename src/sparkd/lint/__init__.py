"""What is known to go wrong with the flags and the environment of an engine, told before it is started. Pure."""
