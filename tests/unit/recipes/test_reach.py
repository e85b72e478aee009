"""What a recipe may do beyond its container is warned of, and what recipes commonly mount is not."""

from pathlib import Path

import pytest
from tests.unit.plans import recipe

from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.reach import find_reach
from sparkd.base.vllm.lint.rules import Issue
from sparkd.tools.node.recipe_lint import lint


def reach(**container: object) -> list[Issue]:
    return list(find_reach(recipe(container=container).container, {}))


@pytest.mark.parametrize(
    ("source", "needle"),
    [
        ("/", "all of its files"),
        ("//", "all of its files"),
        *((source, "docker's socket") for source in ("/run/docker.sock", "/var/run/docker.sock")),
        *((source, "docker's socket") for source in ("/var/run//./docker.sock", "/run", "/var/run")),
        *((source, "one as strong") for source in ("/run/containerd/containerd.sock", "/run/docker/plugins")),
        *((source, "one as strong") for source in ("/run/podman/podman.sock", "/run/crio/crio.sock")),
        *((source, "one as strong") for source in ("/run/libvirt/libvirt-sock", "/run/snapd.socket", "/run/user")),
        *((source, "one as strong") for source in ("/run/user/1000", "/run/user/1000/docker.sock")),
        ("/run/user/1000/podman/podman.sock", "one as strong"),
        ("/var/lib/lxd", "LXD's"),
        ("/var/lib/incus/unix.socket", "LXD's"),
        ("/var/snap/lxd/common/lxd/unix.socket", "LXD's"),
        ("/var/lib/containerd", "all images"),
        ("/var/lib/containers/storage", "all images"),
        ("/var/lib/kubelet/pods", "all images"),
        *((source, "sparkd's keys") for source in ("/run/sparkd", "/var", "/var/lib", "/var/lib/sparkd/cache")),
        *((source, "sparkd's keys") for source in ("/etc/sparkd", "/etc")),
        *((source, "log in") for source in ("/etc/shadow", "/etc/shadow-", "/root", "/home", "/home/me")),
        ("/home/me/.ssh/id_ed25519", "log in"),
        ("/proc", "processes"),
        ("/proc/1/root", "processes"),
        ("/boot/efi", "boots from"),
        ("/dev", "memory"),
        ("/dev/mem", "memory"),
        ("/dev/sda", "disk"),
        ("/dev/nvme0n1p2", "disk"),
        ("/dev/mapper/root", "disk"),
    ],
)
def test_a_mount_that_reaches_the_node_warns_even_where_it_is_only_read(source: str, needle: str) -> None:
    (issue,) = reach(volumes=[f"{source}:/inside:ro"])
    assert needle in issue.reason
    assert (issue.blocks, issue.at) == (False, "container.volumes")


@pytest.mark.parametrize(
    "source",
    [
        "/etc/cron.d",
        "/etc/passwd",
        "/etc/sparkd/recipes",
        "/usr/local/bin",
        "/bin",
        "/lib/systemd",
        "/sys",
        "/opt",
        "/opt/nvidia",
        "/var/lib/dpkg/info",
        "/var/lib/snapd",
    ],
)
def test_what_runs_as_root_warns_where_it_may_be_written_to(source: str) -> None:
    assert len(reach(volumes=[f"{source}:/inside:rw"])) == 1
    assert reach(volumes=[f"{source}:/inside:ro"]) == []


@pytest.mark.parametrize("device", ["/dev/mem", "/dev/sda", "/dev/nvme0n1", "/dev/dm-0", "/dev"])
def test_a_device_that_holds_the_node_warns(device: str) -> None:
    (issue,) = reach(devices=[device])
    assert issue.at == "container.devices"


@pytest.mark.parametrize(
    "options",
    [
        {"volumes": ["/etc/passwd:/etc/passwd:ro", "/etc/group:/etc/group:ro", "/etc/localtime:/etc/localtime:ro"]},
        {"volumes": ["/root/.cache/huggingface:/hub:rw", "/home/me/models:/m:ro", "/srv/models:/x:rw", "/tmp:/t:rw"]},
        {"volumes": ["/etc/sparkd/templates/chat.jinja:/chat.jinja:ro", "/usr/local/cuda:/cuda:ro", "/sys:/host:ro"]},
        {"volumes": ["/opt/models:/m:ro", "/run/user/1000/x:/p:ro", "/var/lib/models:/x:rw"]},
        {"devices": ["/dev/infiniband", "/dev/nvidia0", "/dev/nvidia-uvm", "/dev/fuse", "/dev/dri", "/dev/shm"]},
        {"ipc": "host", "network": "host"},
    ],
)
def test_what_recipes_commonly_have_gives_no_warning(options: dict[str, object]) -> None:
    assert reach(**options) == []


def test_privilege_warns_and_the_hint_gives_what_rdma_needs() -> None:
    (issue,) = reach(privileged=True)
    assert (issue.at, "/dev/infiniband" in issue.hint) == ("container.privileged", True)


def test_a_symlink_of_the_node_is_seen_through() -> None:
    container = recipe(container={"volumes": ["/srv/all:/inside:ro"]}).container
    assert list(find_reach(container, {})) == []
    assert len(list(find_reach(container, {}, {"/srv/all": "/"}.__getitem__))) == 1


def test_check_warns_with_file_and_line_and_the_recipe_stays_good(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "schema: 1\nname: x\nmodel: {path: /root}\nimage: {ref: i}\nargs: {gpu-memory-utilization: 0.9}\n"
        "secrets:\n  A: /etc/shadow\ncontainer:\n  privileged: true\n  volumes: ['/var/run/docker.sock:/s:ro']\n"
    )
    errors, warnings = lint(load_recipe(str(path), []))
    assert errors == []
    places = [line.partition(": ")[2].partition(": ")[0] for line in warnings if ": the container " in line]
    assert places == ["line 9", "line 3", "line 7", "line 10"]
