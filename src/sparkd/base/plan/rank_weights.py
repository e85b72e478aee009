"""The weights that a rank holds of a model. Pure."""

import re
from collections.abc import Mapping

from msgspec import Struct

_WHOLE = re.compile(
    r"norm|(?:^|\.)(?:gate|router|shared_expert_gate|fc|eh_proj|e_proj|h_proj)\.|e_score_correction|indexer|compressor"
    r"|_a_proj|\bwq_a\b|\bwkv\b|\bhc_|latent_proj"
)
"""Parts of names of tensors. Each rank of tensor parallelism holds such a tensor whole."""
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
    """The weights of the fullest rank, by the names and bytes of a model's tensors.

    vLLM divides most matrices over the ranks of tensor parallelism, and experts too, as wholes or in parts. The classes
    of its layers show what each rank holds whole (ReplicatedLinear, norms, routers; vllm/model_executor/layers, 0.33).
    `layers`: the model's, 0 where unknown; layers beyond these draft. `ranks` are those of tensor parallelism, `stages`
    those of pipeline parallelism, and `copies` those of data parallelism, over which experts are divided too.
    """
    divided = experts = whole = outside = 0
    for name, count in tensors.items():
        layer = _LAYER.search(name)
        if not drafts and (_DRAFT.search(name) or (layer and 0 < layers <= int(layer[1]))):
            continue
        if ".experts." in name:
            experts += count
        elif _WHOLE.search(name):
            whole += count
        elif layer:
            divided += count
        else:
            outside += count  # embeddings and head, at the first and the last stage
    even_bytes = (divided + experts + whole + outside) // (ranks * stages * copies)
    end_bytes = outside // ranks if stages == 1 else outside // (2 * ranks)
    layer_bytes = divided // (ranks * stages) + experts // (ranks * stages * copies) + whole // stages
    return RankWeights(even_bytes, max(even_bytes, layer_bytes + end_bytes))
