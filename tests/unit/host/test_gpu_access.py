"""By which way docker gives a container the GPU, and which ways count."""

import pytest
from tests.tree import Tree

from sparkd.base.host import Host, docker, gpu_access
from sparkd.base.lib.dockerd.reader import DockerError

HOOK = "/usr/bin/nvidia-container-runtime-hook"


def gpu_ways(tree: Tree) -> tuple[str, ...]:
    host = Host(tree.root)
    engine = docker.query(host, gpu_access.read_engine)
    assert engine is not None
    return gpu_access.find_ways(host.files, engine)


@pytest.mark.parametrize("mode", ["cdi", "csv", "jit-cdi"])
def test_a_hook_that_is_set_to_refuse_is_no_way(tree: Tree, mode: str) -> None:
    """As `nvidia-ctk config --set nvidia-container-runtime.mode=cdi` has it: --gpus ends with the hook's refusal."""
    tree.docker_engine(Runtimes={"nvidia": {}})
    tree.file(HOOK, mode=0o755)
    tree.file(gpu_access.TOOLKIT, f'#mode = "auto"\n[nvidia-container-runtime]\nmode = "{mode}"\n')
    assert gpu_ways(tree) == ("the runtime nvidia",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[nvidia-container-runtime]\nmode = 'auto'\n",
        "[nvidia-container-runtime]\nmode = 3\n",
        "mode = [",
        "[" * 9999,
    ],
)
def test_a_hook_counts_where_nothing_says_that_it_refuses(tree: Tree, text: str) -> None:
    tree.docker_engine()
    tree.file(HOOK, mode=0o755)
    tree.file(gpu_access.TOOLKIT, text)
    assert gpu_ways(tree) == (HOOK,)


@pytest.mark.parametrize(
    ("ways", "wanted"),
    [
        ((HOOK,), gpu_access.GpuAccess.GPUS),
        (("the runtime nvidia", HOOK, "/etc/cdi/nvidia.yaml"), gpu_access.GpuAccess.GPUS),
        (("/var/run/cdi/nvidia.yaml",), gpu_access.GpuAccess.DEVICE),
        (("the runtime nvidia", "/etc/cdi/nvidia.yaml"), gpu_access.GpuAccess.DEVICE),
        (("the runtime nvidia",), gpu_access.GpuAccess.RUNTIME),
        ((), gpu_access.GpuAccess.GPUS),
    ],
)
def test_a_container_requests_the_gpu_by_the_first_way(ways: tuple[str, ...], wanted: gpu_access.GpuAccess) -> None:
    assert gpu_access.choose_access(ways) is wanted


def test_each_launch_reads_dockers_ways_again(tree: Tree) -> None:
    assert gpu_access.read_access(Host(tree.root)) is gpu_access.GpuAccess.GPUS, "docker is away"
    tree.docker_engine(CDISpecDirs=["/etc/cdi"])
    tree.file("/etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n")
    assert gpu_access.read_access(Host(tree.root)) is gpu_access.GpuAccess.DEVICE
    tree.docker("/info", "busy")
    with pytest.raises(DockerError):
        gpu_access.read_access(Host(tree.root))


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        pytest.param(f"a:\n{'  - path: /usr/lib/libcuda.so' * 5000}\nkind: nvidia.com/gpu\n", True, id="at its end"),
        ('{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[]}', True),
        ('{\n  "kind" : "nvidia.com/gpu"\n}', True),
        ("kind: 'nvidia.com/gpu'", True),
        ("kind: management.nvidia.com/gpu", False),
        ("kind: nvidia.com/gpu-share", False),
        ('kind: "nvidia.com/gpu.shared"', False),
        ("kind: vendor.com/nic", False),
    ],
)
def test_a_specification_counts_if_its_kind_is_the_gpu(tree: Tree, text: str, counts: bool) -> None:
    tree.docker_engine(CDISpecDirs=["/etc/cdi", "/var/run/cdi"])
    tree.file("/var/run/cdi/nvidia.yaml", text)
    assert gpu_ways(tree) == (("/var/run/cdi/nvidia.yaml",) if counts else ())


def test_a_specification_that_docker_does_not_read_is_no_way(tree: Tree) -> None:
    tree.file("/etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n")
    tree.docker_engine()
    assert gpu_ways(tree) == (), "a docker before 25 knows no CDI"
    tree.docker("/info", {"Runtimes": {}, "CDISpecDirs": []})
    assert gpu_ways(tree) == ()


def test_an_unreadable_specification_hides_no_other_way_to_the_gpu(tree: Tree) -> None:
    """A link to nothing, a folder, and a file where a folder is looked for: what a half removed toolkit leaves."""
    tree.docker_engine(Runtimes={"nvidia": {}}, CDISpecDirs=["/etc/cdi", "/var/run/cdi"])
    tree.link("/etc/cdi/a.yaml", "/missing")
    tree.file("/etc/cdi/b.json/x")
    tree.file("/var/run/cdi")
    assert gpu_ways(tree) == ("the runtime nvidia",)
    tree.file("/etc/cdi/c.yaml", "kind: nvidia.com/gpu\n")
    assert gpu_ways(tree) == ("the runtime nvidia", "/etc/cdi/c.yaml")
