"""The machine with the GPU: what the bundles bring is unpacked, docker started, the package, image and model made."""

from __future__ import annotations

import http.client
import json
import lzma
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from .units import SYSTEMCTL

HOME = Path("/opt/sparkd-gpu")
FILES = Path(__file__).with_name("files")
BUNDLES = Path(__file__).parents[2] / "build/gpu"
BARE, BARE_SCRIPT = "bare", Path("/etc/bare-rank")
"""The container that `run_bare` makes."""
IMAGE = "sparkd-test/vllm-gpu:1"
MODEL = Path("/srv/models/tiny")
DOCKER_SOCKET = "run/docker.sock"
DOCKER_SETTINGS = {
    "features": {"cdi": True}, "iptables": False, "ip6tables": False, "bridge": "none", "log-level": "warn",
    "userland-proxy": False,
}  # fmt: skip
CDI = Path("/etc/cdi/nvidia.yaml")
DOCKERD_PID = Path("/run/docker.pid")
ON_CPU = "GPU_ON_CPU" in os.environ
"""A rehearsal with vLLM for the CPU, where there is no GPU."""
DRIVER_LIBRARIES = (
    "libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4",
)  # fmt: skip
IN_IMAGE = (  # as on the machine; what it compiles with belongs to it
    "usr/bin", "usr/sbin", "usr/lib/*-linux-gnu", "usr/lib/python3*", "usr/lib64", "usr/lib/gcc", "usr/libexec/gcc",
    "usr/include", "etc/ld.so*", "etc/passwd", "etc/group", "etc/alternatives",
)  # fmt: skip
IP = ("env", f"LD_LIBRARY_PATH={HOME / 'docker/lib'}", str(HOME / "docker/bin/ip"))
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""On a virtual machine with a part of the host's GPUs, multicast over NVLink can stop them all."""
LAUNCHER = """\
#!{python}
import sys
from vllm.entrypoints.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""


def run(*words: object, seconds: float = 300, env: dict[str, str] | None = None) -> str:
    """Its output, of both kinds. Raises RuntimeError with the end of it."""
    command = [str(word) for word in words]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, check=False,
        env={**os.environ, **(env or {})}, errors="replace",
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:300]} ended with {done.returncode}: {done.stdout[-3000:]}")
    return done.stdout


def unpack(name: str) -> None:
    with lzma.open(BUNDLES / f"{name}.tar.xz") as file, tarfile.open(fileobj=file) as archive:
        archive.extractall(HOME / name, filter="fully_trusted")
    known = run("/sbin/ldconfig", "-p")
    for library in (HOME / name / "lib").glob("*"):  # the machine's own go first: one libc at a time
        if f"\t{library.name} " in known:
            library.unlink()


@cache
def torch_python() -> str:
    """The Python that holds PyTorch."""
    for name in ("python3", "/usr/bin/python3"):
        path = shutil.which(name)
        if path and not subprocess.run([path, "-c", "import torch"], stderr=subprocess.DEVNULL, check=False).returncode:
            return path
    raise RuntimeError("no python3 here holds PyTorch")


def install_package() -> None:
    """The .deb's content, without what its dependency on systemd would bring."""
    packages = sorted(BUNDLES.glob("sparkd_*.deb"))
    run("dpkg", "--force-depends", "--install", packages[-1])
    systemctl = Path("/usr/local/bin/systemctl")
    systemctl.write_text(SYSTEMCTL)
    systemctl.chmod(0o755)


def request_docker(
    method: str, path: str, body: object = None, headers: dict[str, str] | None = None, root: Path = Path("/")
) -> tuple[int, bytes]:
    """`body`: bytes, or a file that is sent in chunks."""
    connection = http.client.HTTPConnection("docker", timeout=300)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(root / DOCKER_SOCKET))
    try:
        connection.request(method, path, body, headers or {}, encode_chunked="Transfer-Encoding" in (headers or {}))  # type: ignore[arg-type]  # a pipe is a file
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def containers(root: Path = Path("/"), *, stopped: bool = False) -> dict[str, str]:
    """Ids by name, those that run, or also those that do not."""
    listed = json.loads(request_docker("GET", f"/containers/json?all={stopped:d}", root=root)[1])
    return {one["Names"][0].removeprefix("/"): one["Id"] for one in listed}


def start_docker() -> str:
    """Returns what docker says of itself."""
    place = HOME / "docker"
    write_cdi()
    stop_docker()
    Path("/etc/docker").mkdir(exist_ok=True)
    Path("/etc/docker/daemon.json").write_text(json.dumps(DOCKER_SETTINGS))
    env = {**os.environ, "PATH": f"{place}/bin:{os.environ['PATH']}", "LD_LIBRARY_PATH": str(place / "lib")}
    command = [str(place / "bin/dockerd"), "--init-path", str(place / "bin/docker-init")]
    with Path("/var/log/dockerd.log").open("ab") as log:
        subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.2)
        try:
            info = json.loads(request_docker("GET", "/info")[1])
        except (OSError, ValueError):
            continue
        return f"{info['ServerVersion']}, {info['Driver']}, cgroup {info['CgroupVersion']}"
    raise RuntimeError(f"dockerd did not answer: {Path('/var/log/dockerd.log').read_text()[-3000:]}")


def stop_docker() -> None:
    if DOCKERD_PID.exists():
        pid = int(DOCKERD_PID.read_text())
        if Path(f"/proc/{pid}/comm").exists():
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + 20
            while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
                time.sleep(0.1)
        DOCKERD_PID.unlink(missing_ok=True)


def find_library(name: str) -> Path | None:
    for line in run("/sbin/ldconfig", "-p").splitlines():
        if line.strip().startswith(f"{name} "):
            return Path(line.rpartition(" => ")[2]).resolve()
    at = Path("/usr/local/nvidia/lib64") / name
    return at.resolve() if at.exists() else None


def write_cdi() -> None:
    """A specification of the GPU by hand, as nvidia-ctk would write it for its devices and libraries."""
    machine = os.uname().machine
    found = {name: library for name in DRIVER_LIBRARIES if (library := find_library(name))}
    devices = [path for path in map(str, sorted(Path("/dev").glob("nvidia*"))) if not Path(path).is_dir()]
    mounts = [
        {"hostPath": str(path), "containerPath": f"/usr/lib/{machine}-linux-gnu/{name}", "options": ["ro", "bind"]}
        for name, path in found.items()
    ]
    edits = {"deviceNodes": [{"path": path} for path in devices]}
    specification = {
        "cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "all", "containerEdits": edits}],
        "containerEdits": {"mounts": mounts},
    }  # fmt: skip
    if devices:
        CDI.parent.mkdir(exist_ok=True)
        CDI.write_text(json.dumps(specification))  # JSON is YAML


def keep_body() -> dict[str, object]:
    """The rank's container and its script, to be made again without sparkd, by `run_bare`."""
    (identity,) = containers().values()
    kept = json.loads(request_docker("GET", f"/containers/{identity}/json")[1])
    (script,) = (one for one in kept["HostConfig"]["Mounts"] if one["Target"] == kept["Config"]["Cmd"][0])
    shutil.copy(script["Source"], BARE_SCRIPT)  # sparkd's own goes with its rank
    script["Source"] = str(BARE_SCRIPT)
    return {**kept["Config"], "HostConfig": kept["HostConfig"], "Labels": {}}


def run_bare(body: Mapping[str, object]) -> None:
    """Raises RuntimeError."""
    json_body = {"Content-Type": "application/json"}
    status, answer = request_docker("POST", f"/containers/create?name={BARE}", json.dumps(body).encode(), json_body)
    if status == 201:
        status, answer = request_docker("POST", f"/containers/{BARE}/start")
    if status >= 300:
        raise RuntimeError(answer.decode(errors="replace"))


def end_bare() -> None:
    request_docker("DELETE", f"/containers/{BARE}?force=1")


def make_image() -> None:
    """From the machine's own programs and libraries, with the command `vllm`; PyTorch is mounted."""
    own = HOME / "image"
    for folder in ("usr/local/bin", "tmp", "root", "proc", "sys", "dev", "run", "opt", "srv"):
        (own / folder).mkdir(parents=True, exist_ok=True)
    (own / "tmp").chmod(0o1777)
    launcher = own / "usr/local/bin/vllm"
    launcher.write_text(LAUNCHER.format(python=torch_python()))
    launcher.chmod(0o755)
    named = [str(path.relative_to("/")) for pattern in IN_IMAGE for path in sorted(Path("/").glob(pattern))]
    links = [name for name in ("bin", "sbin", "lib", "lib64") if Path("/", name).is_symlink()]
    command = ["tar", "-cf", "-", "--exclude=libnvidia*", "--exclude=libcuda*", "--exclude=*cudnn*", "-C", "/"]
    with subprocess.Popen([*command, *named, *links, "-C", own, "."], stdout=subprocess.PIPE) as process:
        repository, _, tag = IMAGE.rpartition(":")
        path = f"/images/create?fromSrc=-&repo={repository}&tag={tag}&changes=ENV%20PATH=/usr/local/bin:/usr/bin:/bin"
        kind = {"Content-Type": "application/x-tar", "Transfer-Encoding": "chunked"}
        status, answer = request_docker("POST", path, process.stdout, kind)
    if status != 200 or b"error" in answer:
        raise RuntimeError(f"docker made no image: {answer[-500:].decode(errors='replace')}")


def make_model() -> str:
    """Returns its size. Of 0.7 G parameters, or tiny for a CPU."""
    MODEL.parent.mkdir(parents=True, exist_ok=True)
    size = (256, 2, "float32") if ON_CPU else (2048, 16, "bfloat16")
    output = run(torch_python(), FILES / "make-model", MODEL, *size, env={"HF_HUB_OFFLINE": "1"})
    return output.splitlines()[-1]


def mounts() -> list[str]:
    """Folders of PyTorch and vLLM, which the container sees where they are."""
    code = "import sys, torch, pathlib; print(sys.prefix, sys.base_prefix, pathlib.Path(torch.__file__).parents[1])"
    folders = run(torch_python(), "-c", code).split()[-3:]
    folders += [str(HOME / "engine"), *("/opt/gcc", "/usr/local/cuda")]
    outside = [one for one in folders if one not in ("/usr", "/usr/local") and Path(one).exists()]
    return sorted({one for one in outside if not any(one.startswith(f"{other}/") for other in outside)})


def write_configuration(
    extra: str = "", env: Mapping[str, str] | None = None, nodes: int = 1, ranks: int = 1, root: Path = Path("/")
) -> None:
    """A recipe for IMAGE and MODEL with a rank on each of `nodes`, or `ranks` on one; `extra`: more of sparkd.toml."""
    folder = root / "etc/sparkd"
    (folder / "recipes").mkdir(parents=True, exist_ok=True)
    volumes = [f"{one}:{one}:ro" for one in mounts()]
    container = {"volumes": volumes, "ipc": "host", "init": True, "ulimits": {"nofile": None, "memlock": None}}
    recipe: dict[str, object] = {"schema": 1, "name": "gpu", "description": "the proof on a GPU"}
    recipe |= {"source": "sparkd's own tests", "image": {"ref": IMAGE, "entrypoint": ["/usr/local/bin/vllm", "serve"]}}
    if ON_CPU:
        recipe |= {"extends": "tiny-cpu" if nodes == 1 else "tiny-cpu-pair", "container": container}
        recipe["env"] = {"TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    else:
        recipe |= {"model": {"path": "tiny", "served_name": "tiny", "random_weights": True}}
        recipe |= {"nodes": {"min": nodes, "max": nodes, "gpus": ranks}, "container": {"gpus": "all", **container}}
        recipe["args"] = {
            "host": "0.0.0.0", "port": 8000, "max-model-len": 4096, "gpu-memory-utilization": 0.5, "max-num-seqs": 64,
            "tensor-parallel-size": ranks if nodes == 1 else "{cluster.size}",
        }  # fmt: skip
        recipe["env"] = {
            "PYTHONPATH": str(HOME / "engine"), "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
            "VLLM_USE_FLASHINFER_SAMPLER": "0", "PYTHONDONTWRITEBYTECODE": "1",
            "TRITON_LIBCUDA_PATH": f"/usr/lib/{os.uname().machine}-linux-gnu", **NO_MULTICAST,
            "VLLM_ALLREDUCE_USE_SYMM_MEM": "0", **(env or {}),
        }  # fmt: skip
    (folder / "recipes/gpu.yaml").write_text(json.dumps(recipe, indent=1))
    (folder / "sparkd.toml").write_text(f'{extra}[engine]\nrecipe = "gpu"\n')
