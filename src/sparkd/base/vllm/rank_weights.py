"""The weights that one rank holds, by the names and sizes of a model's tensors. Pure.

vLLM divides most matrices over the ranks of tensor parallelism, whole experts or parts of each alike; what it holds
whole on each is in its layers' classes (ReplicatedLinear, norms, routers; vllm/model_executor/layers of 0.33).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

_WHOLE = re.compile(
    r"norm|(?:^|\.)(?:gate|router|shared_expert_gate|fc|eh_proj|e_proj|h_proj)\.|e_score_correction|indexer|compressor"
    r"|_a_proj|\bwq_a\b|\bwkv\b|\bhc_|latent_proj"
)
"""Parts of the names of tensors that each rank of tensor parallelism holds whole."""
_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,4})\.")
_DRAFT = re.compile(r"(?:^|\.)mtp\.")


class RankWeights(Struct, frozen=True):
    """Bytes on the fullest rank."""

    least: int
    """The tensors divided evenly: no rank holds less, unless the engine quantizes what it loads."""
    expected: int
    """Includes what each rank holds whole, but not the engine's own copies and paddings."""


def divide_weights(
    tensors: Mapping[str, int], layers: int, ranks: int, stages: int, copies: int = 1, *, drafts: bool = False
) -> RankWeights:
    """The weights of a rank, by the bytes of each tensor.

    `layers`: the model's, 0 where unknown; layers beyond these draft. `ranks` are those of tensor parallelism, `stages`
    those of pipeline parallelism, and `copies` those of data parallelism, over which experts are divided too.
    """
    divided = experts = whole = outside = 0
    for name, size in tensors.items():
        layer = _LAYER.search(name)
        if not drafts and (_DRAFT.search(name) or (layer and 0 < layers <= int(layer[1]))):
            continue
        if ".experts." in name:
            experts += size
        elif _WHOLE.search(name):
            whole += size
        elif layer:
            divided += size
        else:
            outside += size  # embeddings and head, at the first and the last stage
    even = (divided + experts + whole + outside) // (ranks * stages * copies)
    ends = outside // ranks if stages == 1 else outside // (2 * ranks)
    of_layers = divided // (ranks * stages) + experts // (ranks * stages * copies) + whole // stages
    return RankWeights(even, max(even, of_layers + ends))
