"""`sparkd init` and `deinit` on a booted node: what they change, that it comes back, and what stops them."""

from pathlib import Path

import pytest
from tests.bed.conftest import MakeNode
from tests.bed.node import Node

PLACES = "/etc /usr /var/lib/sparkd"
WRITTEN_BY_HAND = "# mine\n[memory]\nheadroom_gib = 3 # as measured\n[engine.env]\nOMP_NUM_THREADS = '2'\n"
TOML, OWN = "/etc/sparkd/sparkd.toml", "/etc/sparkd/conf.d/10-init.toml"


@pytest.fixture(scope="module")
def node(make_node: MakeNode, package: Path) -> Node:
    """With the package, the tiny model and its image, and nothing configured."""
    return make_node("trixie", package)


@pytest.fixture(autouse=True)
def _unconfigured(node: Node) -> None:
    """Each row begins with nothing set up, whatever an earlier one has left."""
    node.sh(f"sparkd deinit; rm -f {TOML} /var/lib/sparkd/setup.json")


def state(node: Node) -> str:
    """All that `init` could change: files by content, links by target (/etc/mtab links to live kernel state)."""
    pruned = "".join(
        f"{place} -prune -o " for place in ("-path /etc/machine-id", "-path /usr/lib/python3", "-name __pycache__")
    )
    links = r"-type l -newer /usr/bin/sparkd -printf '%p -> %l\n'"
    files = r"-type f -newer /usr/bin/sparkd -printf '%p %m ' -exec sha256sum {} \;"
    return node.sh(f"find {PLACES} -xdev {pruned}{links} -o {files} | sort").stdout


def without_manifest(state_text: str) -> str:
    """The state without `setup.json`, which `init` writes before the files that it lists."""
    return "\n".join(line for line in state_text.splitlines() if "/var/lib/sparkd/setup.json" not in line)


def test_what_init_writes_survives_a_power_cut_changes_nothing_again_and_is_taken_back(node: Node) -> None:
    node.write(TOML, WRITTEN_BY_HAND)
    node.run("sync", TOML, str(Path(TOML).parent))
    before = state(node)
    assert f"writes    {OWN}: engine.recipe = tiny-cpu" in node.run("sparkd", "init", "--plan").stdout
    assert state(node) == before, "--plan has changed something"
    lines = node.run("sparkd", "init", "--yes").stdout.splitlines()
    assert lines[-1] == "next      sudo systemctl enable --now sparkd-head"
    written = state(node)
    assert written != before
    node.powercut(lose_unsynced=True)
    node.wait_booted()
    assert state(node) == written
    assert node.read(TOML) == WRITTEN_BY_HAND
    assert "nothing: all of it is there" in node.run("sparkd", "init", "--yes").stdout
    assert state(node) == written
    assert f"removed {OWN}" in node.run("sparkd", "deinit").stdout
    assert state(node) == before
    assert "nothing to take back" in node.run("sparkd", "deinit").stdout


@pytest.mark.parametrize(
    ("setting", "command", "code", "says"),
    [
        ("", "sparkd init", 2, "there is no terminal to confirm on"),
        ("", "runuser -u nobody -- sparkd init --yes", 2, "only root may set up this node"),
        ("", "runuser -u nobody -- sparkd deinit", 2, "only root may change this node"),
        ("mount --bind /etc/sparkd /etc/sparkd && mount -o remount,ro,bind /etc/sparkd", "sparkd init --yes", 2,
         f"{OWN} can't be written: Read-only file system\nhint: it is mounted read-only"),
        ("mount -t tmpfs -o size=4k none /var/lib/sparkd && ! dd if=/dev/zero of=/var/lib/sparkd/full 2>&1",
         "sparkd init --yes", 2, "setup.json can't be written: No space left on device\nhint: make room"),
        ("", "echo 10.0.0.9-00000 | sparkd init --yes --join", 2, "this is no join code"),
        ("", "sparkd init --yes --recipe tiny-gpu", 78, "there is no recipe tiny-gpu"),
    ],
)  # fmt: skip
def test_what_stops_it_is_said_in_one_line_and_nothing_is_written(
    node: Node, setting: str, command: str, code: int, says: str
) -> None:
    before = without_manifest(state(node))
    # In a mount namespace of its own: what is mounted for it is gone with it.
    done = node.run("unshare", "--mount", "sh", "-c", f"{setting or 'true'} && {command} </dev/stdin", check=False)
    assert (done.returncode, done.stderr.count("sparkd: ")) == (code, 1), done.stdout + done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert without_manifest(state(node)) == before


@pytest.mark.whole
def test_without_root_or_docker_a_plan_shows_what_can_be_seen(node: Node) -> None:
    shown = node.run("runuser", "-u", "nobody", "--", "sparkd", "init", "--plan", "--recipe", "tiny-cpu").stdout
    assert "engine.recipe = tiny-cpu" in shown
    node.sh("systemctl stop docker.socket docker.service")
    try:
        shown = node.run("sparkd", "init", "--plan", "--recipe", "tiny-cpu").stdout
    finally:
        node.sh("systemctl start docker.service")
    assert "recipe    tiny-cpu: docker: away" in shown
    assert "next      sudo systemctl start docker" in shown


@pytest.mark.whole
def test_a_purge_leaves_nothing_of_it(make_node: MakeNode, package: Path) -> None:
    node = make_node("trixie", package)
    node.sh("sparkd init --yes && dpkg --purge sparkd", timeout=180)
    assert node.sh("ls -d /etc/sparkd /var/lib/sparkd /etc/systemd/system/sparkd-* 2>/dev/null || true").stdout == ""
