"""Files of an image in layers that the real overlayfs has written."""

from __future__ import annotations

import subprocess
from pathlib import Path

from sparkd.host import Host, image_files


def test_what_the_kernel_lays_over_each_other_is_told_the_same(tmp_path: Path) -> None:
    """Real overlayfs writes the marks: a removed file, a folder made anew, a link, a file in the place of a folder."""
    lower, upper, work, merged = (tmp_path / one for one in ("lower", "upper", "work", "merged"))
    for one in (lower / "usr/bin", lower / "opt/old", lower / "etc/x", upper, work, merged):
        one.mkdir(parents=True)
    (lower / "usr/bin/bash").touch()
    (lower / "usr/bin/python").touch()
    (lower / "opt/old/serve").touch()
    (lower / "bin").symlink_to("usr/bin")
    script = (
        f"mount -t tmpfs x {work} && mkdir {work}/u {work}/w && "
        f"mount -t overlay x -o lowerdir={lower},upperdir={work}/u,workdir={work}/w {merged} && cd {merged} && "
        "rm usr/bin/python && rm -r opt/old && mkdir opt/old && touch opt/new && rm -r etc/x && touch etc/x && "
        f"cp -a {work}/u/. {upper}"
    )
    made = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=30)
    assert made.returncode == 0, made.stderr
    files = Host("/").files
    there = ("/bin/bash", "/bin/python", "/opt/old/serve", "/opt/new", "/etc/x")
    found = [image_files.find(files, (str(upper), str(lower)), path) for path in there]
    assert found == [f"{lower}/usr/bin/bash", None, None, f"{upper}/opt/new", f"{upper}/etc/x"]
