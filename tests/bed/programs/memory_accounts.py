"""One line of JSON: what sparkd reads of the memory that no process has mapped."""

import json
import sys

sys.path[:0] = ["/usr/lib/sparkd/app", "/usr/lib/sparkd/vendor"]
from sparkd.base.host import Host, cgroups, meminfo  # noqa: E402  # only here can it be found

host = Host()
info = host.meminfo()
unit, unit_bytes = cgroups.find_charged(host.files)
print(
    json.dumps(
        {
            "unaccounted_bytes": info.unaccounted_bytes,
            "unexplained_bytes": meminfo.read_unexplained_bytes(host.files, info),
            "charged_bytes": cgroups.read_charged_bytes(host.files),
            "unit": unit,
            "unit_bytes": unit_bytes,
            "held_bytes": info.anonymous_bytes + info.shared_bytes + info.other_counted_bytes,
        }
    )
)
