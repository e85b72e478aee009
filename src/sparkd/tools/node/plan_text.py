"""A plan as a table for people, and as JSON."""

import json
from collections.abc import Sequence

from msgspec import to_builtins

from sparkd.base.lib.text import size
from sparkd.base.plan.compile_jobs import CompileRoom
from sparkd.base.plan.memory_sum import MemorySum
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.recipes.image import Lines
from sparkd.base.recipes.schema import Container
from sparkd.base.status.model import FindingReport

_NO_KERNELS = (
    "no flashinfer-jit-cache is in the image's usual folders of packages: without it, kernels are compiled on a cold "
    "cache; to build them into it: pip install flashinfer-jit-cache=={} --index-url https://flashinfer.ai/whl/cu130 "
    "(cu130 for CUDA 13.0; the image's: python3 -c 'import torch; print(torch.version.cuda)')"
)


def describe_plan(
    plan: LaunchPlan,
    findings: Sequence[FindingReport],
    memory_sum: MemorySum | None,
    compile_room: CompileRoom | None,
    missing_kernels: str,
) -> str:
    """The plan as lines of a name and a text. `findings`: findings on a plan in place of the configured one.

    `memory_sum` and `compile_room`: None where they can't be read. `missing_kernels`: the version of FlashInfer without
    built kernels in the image, if that is known; else empty.
    """
    spec, node = plan.container, plan.node
    gpu_parts = list(memory_sum.rows()) if memory_sum else []
    if compile_room:
        gpu_parts.append(("compilers on a cold cache", compile_room.describe()))
    if missing_kernels:
        gpu_parts.append(("FlashInfer", _NO_KERNELS.format(missing_kernels)))
    privileged = "yes" if spec.privileged else "no"
    rows = [
        *((name, text) for finding in findings for name, text in ((finding.id, finding.reason), ("", finding.hint))),
        ("recipe", plan.recipe),
        ("digest", plan.digest),
        ("node", f"{node.address}: {plan.role}, rank {node.rank} of {node.cluster_size}"),
        ("image", f"{plan.image}, {plan.image_id}" if plan.image_id else plan.image),
        ("model", f"{plan.model_path}, served as {plan.served_name}"),
        *([("endpoint", f"{plan.api_host} port {plan.api_port}")] if node.is_head else []),
        ("container", f"gpus {spec.gpus}, ipc {spec.ipc}, network {spec.network}, privileged {privileged}"),
        *([("shm", size(spec.shm_size_bytes))] if spec.shm_size_bytes is not None else []),
        *(
            ("ulimit", f"{name} {_format_limit(limit.soft)} to {_format_limit(limit.hard)}")
            for name, limit in spec.limits.items()
        ),
        *(("device", device) for device in spec.devices),
        *(("mount", f"{mount.source} at {mount.target}{' read-only' * mount.read_only}") for mount in spec.volumes),
        *(("cache", f"{cache.name} at {cache.target}") for cache in plan.caches),
        *(("secret", f"{secret.name} from {secret.file}") for secret in plan.secrets),
        ("memory", _describe_memory(plan)),
        *(("", f"{part}: {text}") for part, text in gpu_parts if spec.gpus == "all"),
    ]
    return "\n".join(f"{name:<10} {text}" for name, text in rows)


def _format_limit(value: int) -> str:
    return "unlimited" if value < 0 else f"{value}"


def _describe_memory(plan: LaunchPlan) -> str:
    share, limit = plan.gpu_memory_utilization, plan.container.memory_limit_bytes
    if plan.memory_bytes is not None:
        text = f"{plan.memory_bytes / 2**30:.1f} GiB"
    else:
        text = "vLLM's default share of the GPU's memory" if share is None else f"{share:g} of the GPU's memory"
    if limit is not None:
        text += f"; the container's limit of {limit / 2**30:.1f} GiB does not bound the GPU's share"
    return text


def plan_as_json(plan: LaunchPlan) -> str:
    values = to_builtins(plan, enc_hook=_dump_model)
    return json.dumps({"schema": 1, **values, "env": dict(plan.env)}, indent=2)


def _dump_model(value: Container | Lines) -> dict[str, object]:
    fields = value.model_dump()
    if isinstance(value, Container):
        fields["ulimits"] = [{"name": name, **limit.model_dump()} for name, limit in value.limits.items()]
        fields["shm_bytes"] = value.shm_size_bytes
        fields["mounts"] = fields.pop("volumes")
    return fields
