"""Errors that others have met: lines of the engine, NCCL or the kernel, what they mean, and what to do. Pure.

A client can make the engine log any text. So a line is cut before the search, the search is for plain words in order,
and no text of the line goes into an answer. No remedy does harm where the line was forged: what only the kernel logs is
not searched for in the engine's lines.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LINE_LIMIT = 4096
"""Characters that are searched."""
GAP = "…"
"""In a pattern: any text."""
PORT_IN_USE = ("EADDRINUSE", "[Errno 98] Address already in use")

_FLASH = "DeepSeek-V4-Flash on two DGX Sparks, report of 30 May 2026"
_MILLION = "DeepSeek-V4-Flash at 1M context on two DGX Sparks, report of 2026"
_GUIDE = "DeepSeek-V4-Flash on two DGX Sparks with TP=2, thread of May 2026"
_TWO_NODES = "two-node DGX Spark cluster at 20 tokens/s, report of 2026"
_RUN = "seen with vLLM 0.32.0, 21 Nov 2026"
_SOURCE = "source of vLLM 0.32.0, read 22 Nov 2026"
_REACH = "set GLOO_SOCKET_IFNAME and VLLM_HOST_IP to each node's fabric interface and address, as sparkd's plan does"
_SHARDS = "sparkd model check shows which files; sparkd model pull, or sparkd model sync from a good node, brings them"


class KnownError(NamedTuple):
    patterns: tuple[str, ...]
    """One of them is in the line."""
    meaning: str
    remedy: str
    source: str
    """Who met it, and when."""

    @property
    def hint(self) -> str:
        return f"{self.meaning}: {self.remedy}"


# fmt: off
TABLE = tuple(KnownError(*row) for row in (
    (("UnboundLocalError…'w13'",),
     "the patch of mxfp4.py that frees memory during the load was applied twice",
     "use the image as it was built; in it `grep -c empty_cache` of that file counts 2", _FLASH),
    (("'ShmRingBuffer' object has no attribute 'shared_memory'",),
     "vLLM's processes were forked", "remove VLLM_WORKER_MULTIPROC_METHOD=fork: the default is spawn", _FLASH),
    (("cannot import name 'fmin' from 'cutlass.cute.arch'",),
     "this image has another nvidia-cutlass-dsl than its kernels need",
     "use an image with nvidia-cutlass-dsl[cu13]==4.5.0; 4.5.1 has no fmin", _GUIDE),
    (("'cutlass.cute.nvgpu' has no attribute 'OperandMajorMode'",),
     "FlashInfer and cutlass-dsl in this image do not fit together",
     "use the image that the recipe names, or one where both were built together", _MILLION),
    (("DeepGEMM backend is not available", "No module named 'deep_gemm'"),
     "this image has no DeepGEMM, which the sparse attention of DeepSeek V4 needs",
     "build it into the image, from a clone with --recursive", _FLASH + "; vllm-project/vllm#29943"),
    (("ibv_reg_mr…Cannot allocate memory",),
     "RDMA may not lock enough memory", "give the container memlock -1 (ulimits of the recipe), and 64 GiB of shm",
     _MILLION),
    (("Free memory on device…is less than desired GPU memory utilization",),
     "something else holds the memory that CPU and GPU share, perhaps page cache",
     "sparkd preflight names the holder; else lower gpu_memory_utilization", _FLASH),
    (("port: 29501…EADDRINUSE", "EADDRINUSE…port: 29501"),
     "another rank still listens on the port of the rendezvous, or a worker runs without --headless",
     "sparkd preflight finds a rank that was left over; give --headless to every worker", _FLASH),
    (PORT_IN_USE,
     "another process listens on the port", "ss -ltnp shows which one; or give the recipe another port", _RUN),
    (("connect [127.0.", "Using the loopback address as fallback", "Gloo connectFullMesh failed"),
     "Gloo took an address that other nodes can't reach, such as 127.0.0.1", _REACH,
     _TWO_NODES + "; pytorch/gloo#223; vllm-project/vllm#7074"),
    (("error: unrecognized arguments:",),
     "this version of vLLM has no such flag", "remove it, or use an image that has it; sparkd recipe check knows flags",
     _RUN),
    (("Invalid JSON: expected value",),
     "the value is no JSON, mostly because a shell removed its quotes", "write it in the recipe, as a mapping",
     _FLASH + "; " + _RUN),
    (("larger than the available KV cache memory", "No available memory for the cache blocks"),
     "no room is left for one request of the full length",
     "lower max-model-len, or raise gpu_memory_utilization if memory is free", _RUN),
    (("is greater than the derived max_model_len",),
     "max-model-len is more than the model can", "lower max-model-len to the value that the line names", _RUN),
    (("you must provide a chat template", "chat template string…appears path-like, but doesn't exist"),
     "the model has no chat template, or the file that --chat-template names is not in the container",
     "name a file of the model's folder or of a mounted one by --chat-template", _SOURCE),
    (("libtorch_cuda.so: cannot open shared object file", "Torch not compiled with CUDA enabled"),
     "this image has a torch without CUDA", "use the image that the recipe names, or build it with a torch for CUDA",
     _FLASH),
    (("Weight files referenced in index but missing", "Error while deserializing header"),
     "a file of the model is missing or cut off", _SHARDS, _RUN),
    (("Insufficient space in /dev/shm",),
     "the container's /dev/shm is too small", "give the container more shm in the recipe, such as 64g", _RUN),
    (("collective_rpc should not be called on follower node",),
     "a worker runs without --headless", "add --headless to the command of every worker", _RUN),
    (("Timed out after…clients joined", "The client socket has timed out after"),
     "not every rank came to the rendezvous", "look at the other nodes' journals, and at the address of rank 0", _RUN),
    (("Initial free memory…current free memory",),
     "another process released memory while vLLM measured it", "start again once nothing else runs here", _SOURCE),
    (("CUDA out of memory", "CUDA error: out of memory"),
     "the memory that CPU and GPU share ran out", "lower gpu_memory_utilization or max-num-seqs", _FLASH),
))
KERNEL_TABLE = tuple(KnownError(*row) for row in (
    (("NVRM: Xid…: 119, ", "NVRM: Xid…: 120, ", "waiting for RPC…GSP"),
     "the GPU's firmware (GSP) no longer answers", "shut this node down, unplug it for 60 s, and start it again",
     _FLASH + "; NVIDIA/open-gpu-kernel-modules#446"),
    (("NVRM: Xid…: 154, ",),
     "the driver reports which recovery the GPU needs", "see the Xid before it; sparkd preflight names the recovery",
     "NVIDIA's list of Xid errors"),
    (("NVRM: Xid",),
     "the GPU or its driver reports a fault", "reboot this node; if it returns, look up the Xid's number at NVIDIA",
     "NVIDIA's list of Xid errors"),
    (("NV_ERR_NO_MEMORY",),
     "the driver found no large enough piece of memory; alone it is a warning",
     "if the engine fails after it: stop other work, or reboot for unfragmented memory", "vllm-project/vllm#56824"),
))
# fmt: on
_DATE = r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}"
_KERNEL_LINE = re.compile(rf"(?:\[(?:[ \d.]{{1,20}}|{_DATE})\] |[^|()]{{0,80}}\bkernel: )?NVRM: ")
"""As dmesg, dmesg -T and journalctl -k print it; never one of the engine's lines."""


def explain(line: str) -> KnownError | None:
    """The first entry that fits."""
    line = line[:LINE_LIMIT]
    table = KERNEL_TABLE if _KERNEL_LINE.match(line) else TABLE
    return next((one for one in table if any(_found(pattern, line) for pattern in one.patterns)), None)


def _found(pattern: str, line: str) -> bool:
    at = 0
    for words in pattern.split(GAP):
        at = line.find(words, at) + len(words)
        if at < len(words):
            return False
    return True
