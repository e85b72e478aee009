"""In the engine's image: what vLLM says to models with a method of quantization and ranks of tensor parallelism. It
loads none. Cases in, answers out, as JSON files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

from vllm.config import LoadConfig  # type: ignore[import-not-found]
from vllm.engine.arg_utils import EngineArgs  # type: ignore[import-not-found]
from vllm.model_executor.model_loader.weight_utils import get_quant_config  # type: ignore[import-not-found]

MODEL = Path("/judged-model")


def refusal(config: dict[str, object], quantization: str | None, ranks: int) -> str:
    """Empty where it takes them."""
    (MODEL / "config.json").write_text(json.dumps(config))
    args = EngineArgs(
        model=str(MODEL), tokenizer=str(MODEL), skip_tokenizer_init=True, dtype="bfloat16", quantization=quantization
    )
    parallel = SimpleNamespace(
        tensor_parallel_size=ranks, pipeline_parallel_size=1, decode_context_parallel_size=1,
        enable_expert_parallel=False, enable_hc_sp=False,
    )  # fmt: skip
    try:
        model = args.create_model_config()
        model.verify_with_parallel_config(parallel)
        if quantization and "quantization_config" not in config:
            get_quant_config(model, LoadConfig())
    except Exception as error:
        return repr(error)
    return ""


if __name__ == "__main__":
    MODEL.mkdir(exist_ok=True)
    cases = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps([refusal(*case) for case in cases]))
