"""Known errors by the lines of those who met them; safe and fast on lines that a client made."""

import re
import time

import pytest
from msgspec import ValidationError, toml
from tests.unit.verdicts import present

from sparkd.agent.daemon.engine_cause import KERNEL_OOM
from sparkd.base.lib import read_data
from sparkd.base.vllm.known_errors import GAP, PORT_IN_USE, TABLE, KnownError, explain
from sparkd.base.vllm.log_lines import LINE_LIMIT_BYTES


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("UnboundLocalError: local variable 'w13' referenced before assignment", "applied twice"),
        ("UnboundLocalError: cannot access local variable 'w13' where it is not associated with a value", "twice"),
        ("AttributeError: 'ShmRingBuffer' object has no attribute 'shared_memory'", "VLLM_WORKER_MULTIPROC_METHOD"),
        ("ImportError: cannot import name 'fmin' from 'cutlass.cute.arch'", "4.5.0"),
        ("AttributeError: module 'cutlass.cute.nvgpu' has no attribute 'OperandMajorMode'", "FlashInfer"),
        ("RuntimeError: Worker failed with error 'DeepGEMM backend is not available or outdated.", "--recursive"),
        ("ModuleNotFoundError: No module named 'deep_gemm'", "DeepGEMM"),
        ("Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "take container.ulimits.memlock out"),
        (
            "ValueError: Free memory on device cuda:0 (~30/119.67 GiB) [.] is less than desired GPU memory utilization",
            "cache",
        ),
        ("Free memory on device cuda:0 (4.75/119.67 GiB) is less than desired GPU memory utilization (0.9).", "cache"),
        ("DistNetworkError: The server socket has failed. port: 29501, useIpv6: false, name: EADDRINUSE", "--headless"),
        ("torch.distributed.DistNetworkError: EADDRINUSE", "ss -ltnp"),
        ("OSError: [Errno 98] Address already in use", "ss -ltnp"),
        ("RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error", "GLOO_SOCKET"),
        ("[/x/gloo/gloo/transport/tcp/pair.cc:761] connect [127.0.1.1]:60817: Connection refused", "127.0.0.1"),
        ("RuntimeError: Ninja build failed. Ninja output: ninja: build stopped: subcommand failed.", "MAX_JOBS"),
        ("No available shared memory broadcast block found in 60 seconds. This typically happens", "systemctl status"),
        ("TimeoutError: RPC call to sample_tokens timed out.", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"),
        ('sudo: The "no new privileges" flag is set, which prevents sudo from running as root.', "without sudo"),
        ("vllm: error: unrecognized arguments: --no-such-flag", "no such flag"),
        ("Value error, User-specified max_model_len (100000) is greater than the derived max_model_len (", "max-model"),
        ("ValueError: No available memory for the cache blocks. Try increasing ...", "no room"),
        ("ValueError: As of transformers v4.44, [...] so you must provide a chat template if", "--chat-template"),
        ("ImportError: libtorch_cuda.so: cannot open shared object file: No such file or directory", "without CUDA"),
        ("RuntimeError: Insufficient space in /dev/shm for shared-memory allocation:", "take container.shm_bytes out"),
        (
            "torch.distributed.DistStoreError: Timed out after 41 seconds waiting for clients. 1/2 clients joined.",
            "not every rank",
        ),
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp:77, unhandled system error, NCCL", "Last error"),
        ("NCCL error: unhandled system error", "Last error"),
        ("ncclRemoteError: A call failed possibly due to a network error.", "another rank has ended"),
        ("NCCL error: remote process exited or there was a network error, NCCL version 2.28.9", "journals"),
        ("ncclInternalError: Internal check failed.", "NCCL_DEBUG"),
        ("Call to ibv_modify_qp failed with 110 Connection timed out, on dev rocep1s0f0:1", "GID"),
        ("NCCL WARN Bootstrap : no socket interface found", "NCCL_SOCKET_IFNAME"),
        ("ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device", "tensor-parallel-size"),
        ("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", "ptxas"),
        ("torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device", "12.1"),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "sparkd diff"),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", "memory is at fault"),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 12080).", "older than the image"),
        ("torch._inductor.exc.InductorError: CompilationError: at 1:0", "could not compile"),
        ("ValueError: Model architectures ['DeepseekV4ForCausalLM'] are not supported for", "does not know the model"),
        ("KeyError: 'layers.0.ffn.experts.w13_weight'", "another quantization"),
        ("ValueError: x contains custom code. Please pass the argument `trust_remote_code=True` to", "code of its own"),
        ('docker: Error response from daemon: could not select device driver "" with', "no way to the GPU"),
        ("nvidia-container-cli configure: unrecognized option '--cuda-compat-mode=ldconfig'", "libnvidia-container"),
        ("error setting rlimit type 7: operation not permitted", "nofile: null"),
        ("error setting rlimit type 8: operation not permitted", "memlock: null"),
        ("RuntimeError: No CUDA GPUs are available", "sees no GPU"),
        ("Failed to initialize NVML: Driver/library version mismatch", "was upgraded"),
        ("Failed to initialize NVML: Unknown Error", "does not answer"),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1)", "terms"),
        ("exec /usr/bin/bash: exec format error", "arm64"),
        ("Error response from daemon: pull access denied for vllm-ds4, repository does not exist", "image.build"),
        ("OSError: [Errno 28] No space left on device: '/root/.cache/vllm'", "df -h"),
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file or", "built for another CUDA"),
        ("Out of memory: Killed process 4848 (VLLM::EngineCor) total-vm:1kB", "memory ran out"),
        (f"its engine ended: {KERNEL_OOM} (ncclRemoteError: x)", "lower gpu_memory_utilization or max-num-seqs"),
        ("it ended: the kernel killed for want of memory at 10:00: VLLM::Worker (4848)", "max-num-seqs"),
        ("vllm-ds4-head.service: Main process exited, code=exited, status=127/n/a", "systemctl cat"),
        ("bash: /workspace/vllm-head-090.sh: No such file or directory", "not where the command says"),
        ("This model's maximum context length is 200000 tokens. However, you requested 200001 tokens", "max-model-len"),
        ("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", "first error above"),
        ("EOFError: Ran out of input", "the error before it"),
        ("_pickle.UnpicklingError: pickle data was truncated", "compile cache"),
        ("KeyError: \"Unknown key: 'cubin'\"", "compile cache"),
        ("safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete", "cut off"),
    ],
)
def test_lines_of_the_reports_are_explained(line: str, text: str) -> None:
    known = present(explain(line))
    assert text in known.hint
    assert explain(f"(EngineCore pid=9) ERROR 11-21 01:00:00 [core.py:1] {line}") == known


def attacks() -> list[str]:
    """Lines that a search by each pattern nearly finds, again and again."""
    patterns = [pattern for error in TABLE for pattern in error.patterns]
    nearly = [words[:-1] for pattern in patterns for words in pattern.split(GAP)]
    beginnings = [pattern.split(GAP)[0] for pattern in patterns]
    return [(piece * LINE_LIMIT_BYTES)[:LINE_LIMIT_BYTES] for piece in (*nearly, *beginnings, "a", " ", "(", "[1")]


def test_the_longest_line_takes_less_than_five_milliseconds() -> None:
    worst = 0.0
    for line in attacks():
        took = []
        for _ in range(3):
            began = time.thread_time()
            explain(line)
            took.append(time.thread_time() - began)
        worst = max(worst, min(took))  # the least: others have the caches too
    assert worst < 0.005


def test_what_is_moved_away_is_deleted_in_the_end() -> None:
    moving = [error.remedy for error in TABLE if "sudo mv " in error.remedy]
    assert moving
    assert [remedy for remedy in moving if "once it serves, delete cache.old" not in remedy] == []


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=1) ERROR [x.py:1] ValueError: bad request: 'kernel: NVRM: Xid (1): 119, '",
        "Nov 22 10:00:00 spark1 sparkd[7]: engine| ValueError: bad request: 'kernel: NVRM: Xid (1): 119, '",
        "Nov 22 10:00:00 spark1 kernel: NVRM: Xid (PCI:000F:01:00): 119, ",
    ],
)
def test_no_message_of_the_kernel_is_searched_for_in_the_engines_lines(line: str) -> None:
    assert explain(line) is None


@pytest.mark.parametrize("error", TABLE, ids=lambda error: error.patterns[0])
def test_no_advice_does_harm_where_a_client_forged_the_line(error: KnownError) -> None:
    harmful = re.compile(r"\b(rm|kill|pkill|dd|mkfs|chmod|curl|wget|reboot|unplug|shut|privileged|http)\b")
    assert not harmful.search(error.hint)
    assert "{" not in error.hint


def test_no_entry_is_lost_by_a_misspelt_table() -> None:
    assert toml.decode(read_data("known-errors.toml")).keys() == {"engine"}


WHOLE = 'patterns = ["nine char"]\nmeaning = "m"\nremedy = "r"\nsource = "s"\n'


def test_an_entry_has_patterns_meaning_remedy_and_who_met_it() -> None:
    assert toml.decode(WHOLE, type=KnownError) == KnownError(("nine char",), "m", "r", "s")


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (WHOLE.replace("nine char", "eight ch"), "length >= 9"),
        (WHOLE.replace('"nine char"', ""), "length >= 1"),
        (WHOLE.replace('"r"', '""'), "length >= 1"),
        (WHOLE.replace('source = "s"', ""), "missing required field `source`"),
        (f'{WHOLE}hint = "h"', "unknown field `hint`"),
    ],
)
def test_another_entry_is_refused(entry: str, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        toml.decode(entry, type=KnownError)


def test_the_lines_of_a_taken_port_are_those_that_the_agent_searches_for() -> None:
    (error,) = (error for error in TABLE if error.patterns == PORT_IN_USE)
    assert error.remedy == "sudo ss -ltnp shows which one; or give the recipe another port"


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 107] Transport endpoint is not connected",
        'OCI runtime create failed: error mounting "/models/nvidia/DeepSeek-R1" to rootfs at "/m": not a directory',
    ],
    ids=["a socket's", "a mount of the recipe's"],
)
def test_a_line_that_only_looks_like_a_known_error_is_not_explained(line: str) -> None:
    assert explain(line) is None
