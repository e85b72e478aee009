"""Gives docker a runtime `nvidia`, which is the bed's own: a container gets a GPU, where there is one."""

import json
from pathlib import Path

DAEMON = Path("/etc/docker/daemon.json")

daemon = json.loads(DAEMON.read_text())
daemon["runtimes"]["nvidia"] = daemon["runtimes"]["bed"]
DAEMON.write_text(json.dumps(daemon))
