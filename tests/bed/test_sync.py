"""A model and an image on two nodes: real ssh, rsync and docker on both sides."""

import json
import subprocess
from functools import partial
from pathlib import Path

import pytest
from tests.bed.conftest import MakeNode
from tests.bed.node import Node
from tests.bed.pair import Cluster
from tests.bed.processes import wait_for

from sparkd.base.host.image_origin import BUILT

FOLDER = '/srv/models/it\'s a "model" $(touch /oops); *'
SHARD = f"{FOLDER}/model.safetensors"
SHARD_BYTES = 512 << 20
CUT_BYTES = 64 << 20
IMAGE, BUILT_IMAGE = "sparkd-test/sync:1", "localhost/built:1"
MAKE_MODEL = """
import hashlib, json, os, pathlib, sys
folder, size = pathlib.Path(sys.argv[1]), int(sys.argv[2])
kept = folder / ".cache/huggingface/download"
kept.mkdir(parents=True)
(folder / "config.json").write_text("{}")
(folder / "tokenizer.json").write_text("{}")
tensor = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
header = json.dumps({"__metadata__": {"format": "pt"}, "w": tensor}).encode()
shard = len(header).to_bytes(8, "little") + header + os.urandom(size)
(folder / "model.safetensors").write_bytes(shard)
(kept / "model.safetensors.metadata").write_text(f"{40 * 'c'}\\n{hashlib.sha256(shard).hexdigest()}\\n1.5\\n")
(kept / "other.incomplete").write_text("x")
"""
MAKE_IMAGE = """
mkdir /root/layer && head -c 50000000 /dev/urandom > /root/layer/weights && tar -C /root/layer -c . |
docker import -c 'CMD ["/weights"]' -c 'ENV A=b' -c 'LABEL org.opencontainers.image.version=1' - "$0"
"""
CONTAINERD = '{"features": {"containerd-snapshotter": true}}'


@pytest.fixture(scope="module")
def pair(make_node: MakeNode, package: Path) -> Cluster:
    """Installed and configured, nothing started; neither knows the other by ssh."""
    made = Cluster.of([make_node("trixie", package) for _ in range(2)])
    made.configure()
    made.head.node.run("python3", "-c", MAKE_MODEL, FOLDER, str(SHARD_BYTES))
    made.head.node.run("sh", "-c", MAKE_IMAGE, IMAGE)
    # The other one's docker keeps images in containerd's store, which calls them by other ids.
    made.worker.node.write("/etc/docker/daemon.json", CONTAINERD)
    # Logins make no session of logind's, and refused ones no sshd that hangs up on the next.
    made.worker.node.write("/etc/ssh/sshd_config.d/bed.conf", "UsePAM no\nPerSourcePenalties no\n")
    made.worker.node.run("systemctl", "restart", "docker", "ssh")
    return made


@pytest.fixture(scope="module")
def acquainted(pair: Cluster) -> Cluster:
    head, worker = pair.head.node, pair.worker.node
    head.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/root/.ssh/id_ed25519")
    worker.write("/root/.ssh/authorized_keys", head.read("/root/.ssh/id_ed25519.pub"))
    head.sh(f"ssh-keyscan {worker.fabric_address} > /root/.ssh/known_hosts")
    return pair


def sync(node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    return node.run("sparkd", *words, check=False, timeout=120)


def length(node: Node, pattern: str) -> int:
    """Of the largest file in the model's folder whose name begins so; 0 where there is none."""
    found = node.run("find", FOLDER, "-name", pattern, "-printf", "%s\n", check=False).stdout.split()
    return max(map(int, found), default=0)


def received(node: Node) -> int:
    """Bytes over the fabric so far."""
    interface = node.run("sh", "-c", f"ip -o address | grep -F {node.fabric_address}/ | awk '{{print $2}}'").stdout
    return int(node.read(f"/sys/class/net/{interface.strip()}/statistics/rx_bytes"))


@pytest.mark.parametrize("what", [("model", "sync", FOLDER), ("image", "sync", IMAGE)])
def test_a_node_that_refuses_the_login_is_reported_in_one_line(pair: Cluster, what: tuple[str, ...]) -> None:
    head, worker = pair.head.node, pair.worker.node
    address = worker.fabric_address
    unknown = sync(head, *what)
    assert (unknown.returncode, unknown.stderr) == (
        10,
        f"sparkd: {address}: its host key is not known here\nhint: once by hand: sudo ssh {address}\n",
    )
    head.sh(f"mkdir -p /root/.ssh && ssh-keyscan {address} > /root/.ssh/known_hosts")
    keyless = sync(head, *what, "--user", "root")
    head.run("rm", "/root/.ssh/known_hosts")
    assert keyless.stderr.startswith(
        f"sparkd: {address}: it takes none of root's ssh keys\n"
        f"hint: sudo ssh-keygen -N '', then: sudo ssh-copy-id root@{address}"
    )


def test_a_model_whose_copy_is_cut_is_gone_on_with(acquainted: Cluster) -> None:
    head, worker = acquainted.head.node, acquainted.worker.node
    command = head.entered("sparkd", "model", "sync", FOLDER)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        under_way = partial(length, worker, ".model.safetensors.*")
        wait_for(lambda: under_way() > CUT_BYTES or process.poll() is not None, 60, "the copy to be under way")
        for pid in head.pids("^ssh "):
            head.kill(pid, 9)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 10, output
    assert output.count("sparkd: ") == 1, output
    assert "to send" in output, output
    begun = wait_for(lambda: length(worker, "model.safetensors"), 30, "what was cut off to be kept")
    assert begun < SHARD_BYTES
    assert worker.run("test", "-e", SHARD, check=False).returncode, "a file has its name once it is whole"

    before = received(worker)
    done = sync(head, "model", "sync", FOLDER)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("as they were downloaded, by SHA-256: 1 of its files\n")
    assert received(worker) - before < SHARD_BYTES - begun + (32 << 20), "what was there is not sent again"
    assert worker.run("sha256sum", SHARD).stdout == head.run("sha256sum", SHARD).stdout
    assert length(worker, "*.incomplete") == length(worker, ".model.safetensors.*") == 0
    assert worker.run("test", "-e", f"{FOLDER}/.sparkd-partial", check=False).returncode
    for node in (head, worker):
        assert node.run("test", "-e", "/oops", check=False).returncode, "a folder's name is no shell's"


def test_a_file_that_differs_there_is_found_by_its_hash_and_others_stay(acquainted: Cluster) -> None:
    head, worker = acquainted.head.node, acquainted.worker.node
    worker.write(f"{FOLDER}/notes", "mine")
    stamp = worker.run("stat", "-c", "%y", SHARD).stdout.strip()
    worker.run("sh", "-c", 'printf x | dd of="$0" bs=1 seek=5000 conv=notrunc && touch -d "$1" "$0"', SHARD, stamp)
    done = sync(head, "model", "sync", FOLDER)
    assert (done.returncode, "model.safetensors is not what was downloaded" in done.stderr) == (10, True)
    worker.run("rm", SHARD)
    assert sync(head, "model", "sync", FOLDER).returncode == 0
    assert worker.read(f"{FOLDER}/notes") == "mine"


def test_a_full_disk_is_seen_before_anything_is_sent(acquainted: Cluster) -> None:
    head, worker = acquainted.head.node, acquainted.worker.node
    small = "/srv/models/small"
    head.run("sh", "-c", 'ln -s "$0" "$1"', FOLDER, small)
    worker.sh(f"mkdir {small} && mount -t tmpfs -o size=64m,mode=755 none {small}")
    done = sync(head, "model", "sync", small)
    assert done.returncode == 10
    assert f"64 MiB free on {small}, 1.5 GiB needed" in done.stderr
    assert worker.run("ls", "-A", small).stdout == ""
    worker.run("umount", small)


def test_an_image_is_copied_once_between_two_stores(acquainted: Cluster) -> None:
    head, worker = acquainted.head.node, acquainted.worker.node
    assert worker.run("docker", "image", "inspect", IMAGE, check=False).returncode
    done = sync(head, "image", "sync", IMAGE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"{worker.fabric_address}: has {IMAGE} now\n")
    worker.run("docker", "image", "inspect", IMAGE)
    for node in (head, worker):
        assert node.run("find", "/root/.cache/sparkd", "-type", "f").stdout == ""
    again = sync(head, "image", "sync", IMAGE)
    assert (again.returncode, again.stdout) == (0, f"{worker.fabric_address}: has {IMAGE} already\n")


def test_an_image_that_was_built_is_copied_with_what_it_was_built_of(acquainted: Cluster) -> None:
    head, worker = acquainted.head.node, acquainted.worker.node
    image = {"ref": BUILT_IMAGE, "build": {"from": IMAGE, "steps": [{"env": {"GREETING": "hello"}}]}}
    recipe = {"schema": 1, "name": "built", "model": {"path": "tiny"}, "image": image}
    head.write("/etc/sparkd/recipes/built.yaml", json.dumps(recipe))
    head.run("sparkd", "image", "build", "built", "--yes")
    done = sync(head, "image", "sync", BUILT_IMAGE)
    assert (done.returncode, done.stderr) == (0, "")
    label = ("docker", "image", "inspect", "--format", f'{{{{index .Config.Labels "{BUILT}"}}}}', BUILT_IMAGE)
    here, there = (node.run(*label).stdout for node in (head, worker))
    assert json.loads(here) == json.loads(there)
    assert IMAGE in there
