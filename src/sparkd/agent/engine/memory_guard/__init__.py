"""The memory guard kills the engine before memory runs out, which freezes a GB10 machine."""
