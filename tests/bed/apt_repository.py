"""The signed apt repository of a release on a node, which serves it to itself."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import release
from deb import source

from .node import Node
from .processes import wait_for

CHECKOUT = Path(__file__).parents[2]
PORT = 8099
URL = f"http://127.0.0.1:{PORT}"
SERVED = "/srv/apt"


def put(node: Node, name: str, packages: Sequence[Path], key: str, earlier: Sequence[Path] = ()) -> None:
    """Make the release `name` of this checkout, and put its repository on the node, with its install.sh for root."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / name
        release.make(source.read(CHECKOUT), packages, earlier, release.Publisher(key, URL), out)
        node.put(out / "apt", f"/srv/{name}")
        node.put(out / "install.sh", "/root/install.sh")


def publish(node: Node, name: str) -> None:
    """From here on the node serves this one."""
    node.sh(f"rm -rf {SERVED} && cp -r /srv/{name} {SERVED}")


def serve(node: Node) -> None:
    server = ("python3", "-m", "http.server", "--bind=127.0.0.1", f"--directory={SERVED}", str(PORT))
    node.run("systemd-run", "--unit=repository", *server)
    wait_for(lambda: node.run("curl", "--silent", URL, check=False).returncode == 0, 20, "the repository")
