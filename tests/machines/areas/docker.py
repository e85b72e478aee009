"""Docker: the daemon, its containers and images, the compile caches, and units of others that launch engines."""

from __future__ import annotations

import msgspec
from tests.machines.areas import base
from tests.machines.fault import Fault
from tests.tree import Tree

from sparkd.agent.preflight.check import Level

IMAGE = "ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest"
IMAGE_ID = "7d1c" * 16
OTHER_IMAGE_ID = "30ab" * 16
CACHES = f"/var/lib/sparkd/cache/{IMAGE_ID}"
KEPT = ("vllm", "flashinfer", "tilelang")
HOOK = "/usr/bin/nvidia-container-runtime-hook"
THEIRS = "c0ffee" * 10 + "cafe"
OURS = "5ea1" * 16
UNIT = """\
[Unit]
Description=DeepSeek V4 Flash (vLLM head, throughput profile)
After=docker.service network-online.target
Requires=docker.service
[Service]
Type=simple
User=root
ExecStartPre=/usr/bin/docker start vllm_ds4
ExecStartPre=/bin/sleep 5
ExecStart=/usr/bin/docker exec vllm_ds4 bash /workspace/vllm-head.sh
Restart=on-failure
[Install]
WantedBy=multi-user.target
"""
"""DeepSeek V4 Flash on Dual DGX Spark, addendum What Broke on Reboot."""
RUNTIMES = ("io.containerd.runc.v2", "nvidia", "runc")


def healthy(tree: Tree, rank: int) -> None:
    tree.dockerd()
    tree.file("/usr/lib/systemd/system/docker.service", "[Service]\nExecStart=/usr/bin/dockerd -H fd://\n")
    tree.link("/etc/systemd/system/multi-user.target.wants/docker.service", "/usr/lib/systemd/system/docker.service")
    tree.docker("/version", {"Version": "29.2.1", "ApiVersion": "1.53", "Os": "linux", "Arch": "arm64"})
    info(tree, *RUNTIMES)
    tree.file(HOOK, mode=0o755)
    tree.docker("/containers/json", [])
    image(tree)
    asserted(tree, "")
    for name in KEPT:
        tree.sparse(f"{CACHES}/{name}/kernels.bin", 2 << 30)
    tree.sparse(f"/var/lib/sparkd/cache/{OTHER_IMAGE_ID}/vllm/kernels.bin", 3 << 30)


def info(tree: Tree, *runtimes: str) -> None:
    names = {name: {"path": name} for name in runtimes}
    tree.docker("/info", {"Runtimes": names, "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"], "LiveRestoreEnabled": False})


def asserted(tree: Tree, fault: str) -> None:
    """As a start left it that checked what the recipe asserts of the image."""
    from sparkd.base.lib import recipes_dir
    from sparkd.base.plan.image_asserts import render_asserts
    from sparkd.base.recipes.loader import load_recipe
    from sparkd.base.state.launch_history import AssertResult, LaunchHistory

    recipe = load_recipe("deepseek-v4-flash-balanced", [recipes_dir()]).recipe
    result = AssertResult(fault, 9.5, "2026-05-28T06:00:00Z")
    history = LaunchHistory().record_asserts(f"sha256:{IMAGE_ID}", render_asserts(recipe.image.asserts), result)
    base.launches(tree, asserts=msgspec.to_builtins(history.asserts))


def image(tree: Tree, architecture: str = "arm64") -> None:
    tree.docker(
        f"/images/{IMAGE}/json",
        {
            "Id": f"sha256:{IMAGE_ID}",
            "RepoDigests": [f"{IMAGE.rpartition(':')[0]}@sha256:{'9e' * 32}"],
            "Created": "2026-05-20T03:11:52.123456789Z",
            "Architecture": architecture,
            "Os": "linux",
            "Size": 21_474_836_480,
            "Config": {
                "Env": ["PATH=/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin"],
                "Entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh"],
                "Labels": {
                    "org.opencontainers.image.revision": "4c1f9e02b7",
                    "org.opencontainers.image.source": "https://github.com/eugr/spark-vllm-docker",
                    "org.opencontainers.image.version": "24.04",
                },
            },
            "RootFS": {"Type": "layers", "Layers": ["sha256:" + "11" * 32]},
        },
    )


def container(tree: Tree, full_id: str, name: str, *, policy: str, labels: dict[str, str], image: str = IMAGE) -> None:
    """One that is stopped."""
    tree.docker("/containers/json", [{"Id": full_id}])
    tree.docker(
        f"/containers/{full_id}/json",
        {
            "Id": full_id,
            "Name": f"/{name}",
            "Path": "sleep",
            "Args": ["infinity"],
            "Image": f"sha256:{IMAGE_ID}",
            "Config": {"Labels": labels, "Image": image},
            "State": {"Running": False, "Pid": 0},
            "HostConfig": {"RestartPolicy": {"Name": policy}},
        },
    )


def _away(tree: Tree) -> None:
    (tree.root / "run/docker.pid").unlink()


def _does_not_answer(tree: Tree) -> None:
    tree.docker("/info", "busy")


def _no_way_to_the_gpu(tree: Tree) -> None:
    info(tree, "io.containerd.runc.v2", "runc")
    (tree.root / HOOK.lstrip("/")).unlink()


def _image_gone(tree: Tree) -> None:
    (tree.root / f".sparkd/docker/images/{IMAGE}/json.json").unlink()


def _image_of_another_machine(tree: Tree) -> None:
    image(tree, architecture="amd64")


def _image_lacks_deepgemm(tree: Tree) -> None:
    asserted(tree, "ModuleNotFoundError: No module named 'deep_gemm' (python3 -c 'import deep_gemm')")


def _image_not_checked(tree: Tree) -> None:
    base.launches(tree, asserts={})


def _cache_wiped(tree: Tree) -> None:
    """With 2.5 GiB beside the engine's share."""
    from sparkd.base.host import Host, docker_image

    base.memory(tree, free=111.8, available=112.0)
    _nothing_compiled(tree)
    host = Host(tree.root)
    identity = docker_image.image_identity(host.docker_reader(), IMAGE)
    good = {"image.identity": identity or "", "caches.vllm": "/root/.cache/vllm"}
    base.launches(tree, boots=[], tried={}, good=good, good_caches=["vllm"])


def _nothing_compiled(tree: Tree) -> None:
    """As before the first start: with 3.5 GiB beside the engine's share, on an idle machine."""
    for name in KEPT:
        (tree.root / f"{CACHES}/{name}/kernels.bin".lstrip("/")).unlink()


def _cache_in_the_way(tree: Tree) -> None:
    (tree.root / f"{CACHES}/flashinfer/kernels.bin".lstrip("/")).unlink()
    (tree.root / f"{CACHES}/flashinfer".lstrip("/")).rmdir()
    tree.file(f"{CACHES}/flashinfer")


def _port_held(tree: Tree) -> None:
    tree.process(50, "open-webui", opened=("socket:[50]",))
    tree.listening((8000, 50))


def _observed_by_another(tree: Tree) -> None:
    tree.process(51, "node_exporter", opened=("socket:[51]",))
    tree.listening((29511, 51))


def _name_taken(tree: Tree) -> None:
    container(tree, THEIRS, "sparkd-rank0", policy="no", labels={"maintainer": "NVIDIA CORPORATION"})


def _copy_restarts(tree: Tree) -> None:
    """A container made by hand of what `docker commit` made of a rank: the labels have come with the image."""
    container(tree, OURS, "serve", policy="unless-stopped", labels={"io.sparkd.role": "head"}, image="mine:1")


def _unit_of_before(tree: Tree) -> None:
    tree.file("/etc/systemd/system/vllm-ds4-head.service", UNIT)
    wants = "/etc/systemd/system/multi-user.target.wants/vllm-ds4-head.service"
    tree.link(wants, "/etc/systemd/system/vllm-ds4-head.service")


def _container_of_before(tree: Tree) -> None:
    container(tree, THEIRS, "vllm_ds4", policy="unless-stopped", labels={})


NOT_SEEN = ("image", "compile-cache", "stale-container", "remove-ipc")
"""Without docker."""
FAULTS = (
    Fault("docker-away", _away, Level.WARN, "docker", says="sudo systemctl start docker", also=NOT_SEEN),
    Fault("docker-out-of-order", _does_not_answer, Level.UNKNOWN, "docker", says="runtimes"),
    Fault("docker-without-gpu", _no_way_to_the_gpu, Level.BLOCK, "docker", says="sudo nvidia-ctk runtime configure"),
    Fault(
        "image-gone",
        _image_gone,
        Level.BLOCK,
        "image",
        says=f"sudo docker pull {IMAGE}",
        rank=1,
        also=("compile-cache", "remove-ipc"),
    ),
    Fault("image-for-amd64", _image_of_another_machine, Level.BLOCK, "image", says="this machine is arm64"),
    Fault("image-without-deepgemm", _image_lacks_deepgemm, Level.BLOCK, "image", says="sparkd image build"),
    Fault("image-not-checked", _image_not_checked, Level.WARN, "image", says="the next start does"),
    Fault("cache-wiped", _cache_wiped, Level.BLOCK, "compile-cache", says="109.5 GiB and 3.0 GiB to compile"),
    Fault(
        "compiles-with-room", _nothing_compiled, Level.WARN, "compile-cache", says="compiles from scratch (vllm empty, "
    ),
    Fault("cache-is-no-folder", _cache_in_the_way, Level.BLOCK, "compile-cache", says="is no folder"),
    Fault("api-port-held", _port_held, Level.BLOCK, "ports", says="pid 50 (open-webui)"),
    Fault("observers-port-held", _observed_by_another, Level.WARN, "ports", says="observe.listen", rank=1),
    Fault("rank-name-taken", _name_taken, Level.BLOCK, "stale-container", says="sudo docker rename sparkd-rank0"),
    Fault("labelled-copy-restarts", _copy_restarts, Level.WARN, "stale-container", says="--restart=no serve"),
    Fault("unit-of-before", _unit_of_before, Level.WARN, "foreign-units", says="disable vllm-ds4-head.service"),
    Fault("container-of-before", _container_of_before, Level.WARN, "foreign-units", says="--restart=no vllm_ds4"),
)
