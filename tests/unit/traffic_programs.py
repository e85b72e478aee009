"""Stand-ins for the programs that measure: they print what the real ones do, and carry nothing."""

import time
from pathlib import Path

from sparkd.tools.measure.traffic_programs import IB_WRITE_BW, IPERF3

IPERF3_PRINTED = b"""\
{
	"start":	{"version":	"iperf 3.12", "system_info":	"Linux spark1 6.8.0-1018-nvidia aarch64"},
	"intervals":	[],
	"end":	{
		"streams":	[],
		"sum_sent":	{"seconds":	3.002032, "bytes":	7243038720, "bits_per_second":	19301696237.7483, "sender":	true},
		"sum_received":	{"seconds":	3.002122, "bytes":	7243038720, "bits_per_second":	19301117596.153656}
	}
}
"""
"""By iperf3 3.12, shortened."""
LISTENS = "echo $$ >{folder}/{name}.pid; exec sleep 60"


class Programs:
    """A folder in PATH, where nobody may execute and write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o777)
        (folder / "printed").write_bytes(IPERF3_PRINTED)
        (folder / "printed").chmod(0o644)
        listens = LISTENS.format(folder=folder, name=IPERF3)
        self.write(IPERF3, f'case "$*" in *--server*) {listens};; esac\ncat {folder}/printed')
        self.write(IB_WRITE_BW, LISTENS.format(folder=folder, name=IB_WRITE_BW))

    def write(self, name: str, script: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.folder / name).chmod(0o755)

    def pid(self, name: str) -> int:
        """Of the one that listens."""
        path, deadline = self.folder / f"{name}.pid", time.monotonic() + 10
        while not (path.exists() and path.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return int(path.read_text())

    @staticmethod
    def lives(pid: int, seconds: float = 10) -> bool:
        """Whether it runs; where it does, so much time is given to it to end."""
        deadline, stat = time.monotonic() + seconds, Path(f"/proc/{pid}/stat")
        while stat.exists() and " Z " not in stat.read_text():
            if time.monotonic() > deadline:
                return True
            time.sleep(0.01)
        return False
