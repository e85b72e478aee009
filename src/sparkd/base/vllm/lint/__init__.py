"""Reports flags and environment that are known to fail, before the engine starts. Does no I/O."""
