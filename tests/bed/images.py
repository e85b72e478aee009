"""The container images that every docker in the bed has from the start."""

import subprocess
from pathlib import Path

from . import engine_image
from .command import BedError
from .node import Node

BUSYBOX = "sparkd-test/busybox:1"
BUSYBOX_TREE = """
    set -e
    mkdir -p /root/bb/bin /root/bb/etc /root/bb/tmp
    cp /bin/busybox /root/bb/bin/
    echo root:x:0:0:root:/:/bin/sh > /root/bb/etc/passwd
    chroot /root/bb /bin/busybox --install -s /bin
    tar -C /root/bb -c . | docker import -c 'CMD ["/bin/sh"]' -c 'ENV PATH=/bin' - "$0"
    rm -r /root/bb
"""


def load(node: Node) -> None:
    """Into the docker of a booted node."""
    node.run("sh", "-c", BUSYBOX_TREE, BUSYBOX)
    changes = [word for change in engine_image.CHANGES for word in ("--change", change)]
    import_archive(node, engine_image.archive(), *changes, "-", engine_image.NAME)


def import_archive(node: Node, archive: Path, *options: str) -> None:
    with subprocess.Popen(["zstd", "-dcq", archive], stdout=subprocess.PIPE) as unpacker:
        command = node.entered("docker", "import", *options)
        done = subprocess.run(command, stdin=unpacker.stdout, capture_output=True, text=True, check=False, timeout=900)
    if unpacker.returncode or done.returncode:
        raise BedError(f"docker import of {archive.name}: {done.stderr.strip()}")
