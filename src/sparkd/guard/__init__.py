"""The memory guard: where memory runs out on GB10 the machine freezes, so the engine is killed before it does.

`rule` says when (pure), `helper` is the process that looks and kills, `guard` is the agent's side of it, `trace` tells
what was seen.
"""

LOCKED, UNLOCKED, KILLED = "locked", "unlocked", "killed"
"""What the process says to the agent, each on a line: after UNLOCKED the reason, after KILLED its last samples."""
