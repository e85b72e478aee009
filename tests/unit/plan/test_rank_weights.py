"""Which weights a rank holds, by the names of tensors."""

import pytest

from sparkd.base.plan.rank_weights import RankWeights, divide_weights

LAYER = "model.layers.{}.{}"


@pytest.mark.parametrize(
    "name",
    [
        "input_layernorm.weight", "self_attn.q_norm.weight", "mlp.gate.weight", "mlp.gate.e_score_correction_bias",
        "mlp.router.weight", "self_attn.kv_a_proj_with_mqa.weight", "self_attn.q_a_proj.weight",
        "self_attn.indexer.wk.weight", "attn.wq_a.weight", "attn.wkv.weight", "attn.compressor.wgate.weight",
    ],
)  # fmt: skip
def test_each_rank_holds_a_norm_a_router_and_what_is_replicated_whole(name: str) -> None:
    assert divide_weights({LAYER.format(0, name): 100}, 1, 2, 1) == RankWeights(least=50, expected=100)


@pytest.mark.parametrize(
    "name",
    [
        "self_attn.q_proj.weight", "self_attn.kv_b_proj.weight", "mlp.gate_proj.weight",
        "mlp.experts.7.gate_proj.weight", "mlp.experts.gate_up_proj_blocks", "ffn.experts.3.w1.weight",
        "mixer.in_proj.weight",
    ],
)  # fmt: skip
def test_other_matrices_and_experts_are_divided_over_the_ranks(name: str) -> None:
    assert divide_weights({LAYER.format(0, name): 100}, 1, 2, 1) == RankWeights(least=50, expected=50)


def test_layers_are_divided_over_stages_and_an_end_has_embedding_or_head() -> None:
    tensors = {LAYER.format(layer, "mlp.up_proj.weight"): 100 for layer in range(4)}
    tensors |= {"model.embed_tokens.weight": 80, "lm_head.weight": 80}
    assert divide_weights(tensors, 4, 1, 2) == RankWeights(least=280, expected=280)


@pytest.mark.parametrize("name", [LAYER.format(4, "mlp.up_proj.weight"), "mtp.layers.0.mlp.up_proj.weight"])
def test_what_drafts_is_loaded_where_the_plan_drafts(name: str) -> None:
    tensors = {LAYER.format(3, "mlp.up_proj.weight"): 100, name: 10}
    assert divide_weights(tensors, 4, 1, 1).expected == 100
    assert divide_weights(tensors, 4, 1, 1, drafts=True).expected == 110


def test_no_layer_is_one_that_drafts_where_their_number_is_unknown() -> None:
    assert divide_weights({LAYER.format(9, "w"): 7}, 0, 1, 1).expected == 7


def test_experts_are_divided_over_the_copies_of_data_parallelism_and_the_rest_is_not() -> None:
    tensors = {LAYER.format(0, "mlp.experts.0.up_proj.weight"): 100, LAYER.format(0, "self_attn.q_proj.weight"): 10}
    assert divide_weights(tensors, 1, 1, 1, copies=2) == RankWeights(least=55, expected=60)
