"""A release on a booted node, by the node's own apt: installed from its repository, upgraded, taken back, removed."""

from pathlib import Path

import pytest
from tests.bed import apt_repository
from tests.bed.apt_repository import SERVED, publish, serve
from tests.bed.conftest import MakeNode
from tests.bed.node import Node
from tests.siege.package import renamed

from sparkd import __version__

INDEX = f"{SERVED}/dists/stable"
OLD = "0.1.0~git20261120101010.0123abcde"
KEPT = "/etc/sparkd/sparkd.toml"


@pytest.fixture(scope="module", params=["bookworm", pytest.param("trixie", marks=pytest.mark.whole)])
def node(
    request: pytest.FixtureRequest,
    make_node: MakeNode,
    package: Path,
    signing_key: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Node:
    """Serves the repository of an earlier release to itself; the next one's, which has both, lies beside it."""
    folder = tmp_path_factory.mktemp("release")
    node, architecture = make_node(request.param), package.stem.rpartition("_")[2]
    earlier = renamed(package, folder, OLD).rename(folder / f"sparkd_{OLD}_{architecture}.deb")
    apt_repository.put(node, "old", [earlier], signing_key)
    apt_repository.put(node, "new", [package], signing_key, [earlier])
    # Its suite's mirror, which it can't reach.
    node.sh("rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*")
    publish(node, "old")
    serve(node)
    return node


def apt(node: Node, *words: str, check: bool = True) -> tuple[int, str]:
    done = node.run("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--yes", *words, check=check, timeout=300)
    return done.returncode, done.stdout + done.stderr


def installed(node: Node) -> str:
    """What dpkg calls the version, and what the program does."""
    return node.sh("dpkg-query --show --showformat='${Version}, ' sparkd && sparkd --version").stdout.strip()


def test_apt_installs_upgrades_goes_back_removes_and_purges(node: Node, package: Path) -> None:
    node.run("systemctl", "stop", "repository")
    assert node.run("sh", "/root/install.sh", check=False).returncode == 100, "out of reach"
    serve(node)
    output = node.sh("sh /root/install.sh").stdout
    assert output.splitlines()[-1] == "sudo apt-get install sparkd"
    apt(node, "install", "sparkd")
    assert installed(node) == f"{OLD}, sparkd {OLD}"
    node.write(KEPT, '[engine]\nrecipe = "tiny-cpu"\n')

    publish(node, "new")
    apt(node, "update")
    apt(node, "upgrade")
    assert installed(node) == f"{package.name.split('_')[1]}, sparkd {__version__}"

    apt(node, "install", "--allow-downgrades", f"sparkd={OLD}")
    assert installed(node) == f"{OLD}, sparkd {OLD}"

    apt(node, "remove", "sparkd")
    node.sh(f"test ! -e /usr/bin/sparkd && test -s {KEPT}")
    apt(node, "purge", "sparkd")
    node.sh(f"test ! -e {KEPT} && ! dpkg-query --status sparkd 2>&1 >/dev/null")


@pytest.mark.parametrize(
    ("spoil", "refusal"),
    [
        (f"sed -i 's/^Priority: optional/Priority: required/' {INDEX}/main/binary-*/Packages", "Hash Sum mismatch"),
        (f"sed -i 's/^Label: sparkd/Label: others/' {INDEX}/InRelease", "signature"),
        (f"cp {INDEX}/Release {INDEX}/InRelease", "signed"),
        (f"rm {INDEX}/InRelease", "not signed"),
    ],
    ids=["packages", "changed", "clear", "unsigned"],
)
def test_apt_refuses_what_was_not_signed(node: Node, spoil: str, refusal: str) -> None:
    publish(node, "new")
    node.sh(f"sh /root/install.sh && rm -rf /var/lib/apt/lists/* && {spoil}")
    code, output = apt(node, "update", check=False)
    assert (code, refusal in output) == (100, True), output
    code, output = apt(node, "install", "sparkd", check=False)
    assert code == 100, output
    node.sh("test ! -e /usr/bin/sparkd")


def test_apt_refuses_a_package_that_was_exchanged(node: Node) -> None:
    publish(node, "new")
    node.sh(
        f"sh /root/install.sh && apt-get clean && for deb in {SERVED}/pool/main/s/sparkd/*.deb; do echo x >>$deb; done"
    )
    code, output = apt(node, "install", "sparkd", check=False)
    assert code == 100, output
    assert "Hash Sum mismatch" in output or "unexpected size" in output, output
    node.sh("test ! -e /usr/bin/sparkd")
