"""Fields in the JSON of flags, as the classes of vLLM 0.32.0 read them. Made by `make flags`: do not edit."""
# ruff: noqa: E501
# fmt: off

from __future__ import annotations

from collections.abc import Mapping

from sparkd.vllm.flag import Field

FIELDS: Mapping[str, tuple[Field, ...]] = {
    "attention-config": (
        Field("backend", "null", choices=("FLASH_ATTN", "FLASH_ATTN_DIFFKV", "TRITON_ATTN", "TRITON_ATTN_DIFFKV", "TRITON_FLASH_ATTN", "ROCM_ATTN", "ROCM_SEGMENTED_ATTN", "ROCM_AITER_MLA", "ROCM_AITER_TRITON_MLA", "ROCM_AITER_FA", "ROCM_AITER_MLA_SPARSE", "XPU_MLA_SPARSE", "TORCH_SDPA", "FLASHINFER", "TRITON_FLASHINFER", "FLASHINFER_MLA", "TOKENSPEED_MLA", "FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM120", "FLASHINFER_MLA_SPARSE_SM90", "TRITON_MLA", "CUTLASS_MLA", "FLASHMLA", "FLASHMLA_SPARSE", "FLASHMLA_SPARSE_DSV4", "FLASHINFER_MLA_SPARSE_DSV4", "ROCM_FLASHMLA_SPARSE_DSV4", "FLASHMLA_SPARSE_DSV41", "FLASHINFER_MLA_SPARSE_DSV41", "FLASHMLA_MEGA_ATTN_DSV41", "B12X", "FLASH_ATTN_MLA", "FLASH_ATTN_MLA_SPARSE", "MINIMAX_M3_SPARSE", "CUTLASS_MSA", "TRITON_MSA", "NO_ATTENTION", "FLEX_ATTENTION", "HPC_ATTN", "ROCM_AITER_UNIFIED_ATTN", "CPU_ATTN", "CPU_MLA", "AMX_MLA", "TURBOQUANT", "ULTRAQUANT", "CUSTOM"), folds=True),
        Field("minimax_m3_msa_decode_backend", "", choices=("triton", "cutlass")), Field("backend_per_kind", "object"), Field("flash_attn_version", "null int"),
        Field("flash_attn_max_num_splits_for_cuda_graph", "bool int"), Field("tokenspeed_mla_min_split_kv", "bool int"),
        Field("tq_max_kv_splits_for_cuda_graph", "bool int"), Field("use_trtllm_attention", "null bool"), Field("disable_flashinfer_q_quantization", "bool"),
        Field("mla_prefill_backend", "null", choices=("FLASH_ATTN", "FLASHINFER", "TRTLLM_RAGGED", "TOKENSPEED_MLA", "ROCM_AITER_FA", "CPU", "ZEN_CPU", "CUSTOM"), folds=True),
        Field("use_prefill_query_quantization", "bool"), Field("indexer_kv_dtype", "", choices=("auto", "bf16", "fp8", "mxfp4", "nvfp4")),
        Field("indexer_sparse_logits", "bool"), Field("hisparse_config", "null object"), Field("hisparse_config.device_buffer_size", "null bool int"),
        Field("hisparse_config.eager_host_mirror", "bool"), Field("use_non_causal", "bool"), Field("sparse_mla_force_mqa", "bool"),
        Field("sparse_mla_prefill_workspace_factor", "null int"), Field("flex_attn_block_m", "null bool int"), Field("flex_attn_block_n", "null bool int"),
        Field("flex_attn_q_block_size", "null bool int"), Field("flex_attn_kv_block_size", "null bool int"),
    ),
    "aux-output-config": (
        Field("enable_return_routed_experts", "bool"), Field("max_bytes", "null bool int"),
    ),
    "compilation-config": (
        Field("mode", "null bool int", choices=("NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "VLLM_COMPILE"), folds=True), Field("debug_dump_path", "null text"),
        Field("cache_dir", "text"), Field("compile_cache_save_format", "", choices=("binary", "unpacked")), Field("backend", "text"), Field("custom_ops", "list"),
        Field("ir_enable_torch_wrap", "null bool"), Field("splitting_ops", "null list"), Field("compile_mm_encoder", "bool"), Field("cudagraph_mm_encoder", "bool"),
        Field("encoder_cudagraph_token_budgets", "list"), Field("encoder_cudagraph_max_vision_items_per_batch", "bool int"),
        Field("encoder_cudagraph_max_frames_per_batch", "null bool int"), Field("cudagraph_decoder_replay", "bool"),
        Field("decoder_replay_cudagraph_capture_sizes", "list"), Field("decoder_replay_trim_threshold", "bool int"), Field("compile_sizes", "null list"),
        Field("compile_ranges_endpoints", "null list"), Field("inductor_compile_config", "object"), Field("inductor_passes", "object"),
        Field("cudagraph_mode", "null bool int", choices=("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"), folds=True),
        Field("cudagraph_num_of_warmups", "bool int"), Field("cudagraph_capture_sizes", "list"), Field("cudagraph_copy_inputs", "bool"),
        Field("cudagraph_specialize_lora", "bool"), Field("use_inductor_graph_partition", "null bool"), Field("pass_config", "object"),
        Field("pass_config.fuse_norm_quant", "null bool"), Field("pass_config.fuse_act_quant", "null bool"), Field("pass_config.fuse_attn_quant", "null bool"),
        Field("pass_config.eliminate_noops", "bool"), Field("pass_config.fuse_allreduce_rms", "null bool"),
        Field("pass_config.enable_qk_norm_rope_fusion", "null bool"), Field("pass_config.fuse_rope_kvcache_cat_mla", "null bool"),
        Field("pass_config.fuse_act_padding", "null bool"), Field("pass_config.fuse_mla_dual_rms_norm", "null bool"),
        Field("pass_config.fuse_rope_kvcache", "null bool"), Field("pass_config.fuse_qk_norm_rope_kvcache", "null bool"),
        Field("pass_config.rope_kvcache_fusion_max_token_num", "bool int"), Field("pass_config.fi_allreduce_fusion_max_size_mb", "null bool int float"),
        Field("max_cudagraph_capture_size", "null bool int"), Field("dynamic_shapes_config", "object"),
        Field("dynamic_shapes_config.type", "", choices=("backed", "unbacked", "backed_size_oblivious")), Field("dynamic_shapes_config.evaluate_guards", "bool"),
        Field("dynamic_shapes_config.assume_32_bit_indexing", "bool"), Field("fast_moe_cold_start", "null bool"),
    ),
    "diffusion-config": (
        Field("canvas_length", "bool int"), Field("max_denoising_steps", "null bool int"),
    ),
    "ec-manager-config": (
        Field("encoder_cache_manager_cls", "null text"), Field("manager_config", "object"),
    ),
    "ec-transfer-config": (
        Field("ec_connector", "null text"), Field("engine_id", "null text"), Field("ec_buffer_device", "null text"), Field("ec_buffer_size", "bool int float"),
        Field("ec_role", "null", choices=("ec_producer", "ec_both", "ec_consumer")), Field("ec_ip", "text"), Field("ec_port", "bool int"),
        Field("ec_connector_extra_config", "object"), Field("ec_connector_module_path", "null text"),
    ),
    "engram-config": (
        Field("cpu_offload", "bool"), Field("embedding_across_dp", "bool"), Field("dp_shared_memory", "null bool"), Field("use_thp", "bool"),
    ),
    "eplb-config": (
        Field("window_size", "bool int"), Field("step_interval", "bool int"), Field("num_redundant_experts", "bool int"), Field("log_balancedness", "bool"),
        Field("log_balancedness_interval", "bool int"), Field("use_async", "bool"), Field("policy", "", choices=("default",)),
        Field("communicator", "null", choices=("torch_nccl", "torch_gloo", "torch_xccl", "nixl", "pynccl")), Field("enable_migration_batching", "bool"),
    ),
    "fault-tolerance-config": (
        Field("engine_recovery_timeout_sec", "bool int"),
    ),
    "kernel-config": (
        Field("ir_op_priority", "object"), Field("ir_op_priority.rms_norm", "null bool int float text list"),
        Field("ir_op_priority.fused_add_rms_norm", "null bool int float text list"), Field("ir_op_priority.gelu_and_mul_sparse", "null bool int float text list"),
        Field("enable_flashinfer_autotune", "null bool"), Field("enable_rocm_segmented_attn_autotune", "bool"), Field("enable_cutedsl_warmup", "null bool"),
        Field("enable_jit_warmup", "null bool"),
        Field("moe_backend", "", choices=("auto", "triton", "batched_triton", "deep_gemm", "deep_gemm_mega_moe", "cutlass", "flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_cutedsl", "flashinfer_moe_ep_cutedsl", "flashinfer_b12x", "b12x", "flashinfer_moe_ep_mega_deep_gemm", "marlin", "humming", "triton_unfused", "aiter", "aiter_mega_moe", "aiter_triton_mxfp4_bf16", "flydsl", "hpc", "emulation", "rdna3"), folds=True),
        Field("sparse_indexer_topk_backend", "", choices=("auto", "deep_select", "cooperative", "persistent", "per_row", "flashinfer", "torch", "aiter"), folds=True),
        Field("linear_backend", "", choices=("auto", "cutlass", "flashinfer_cutlass", "flashinfer_cutedsl", "flashinfer_trtllm", "flashinfer_cudnn", "flashinfer_b12x", "b12x", "marlin", "humming", "triton", "deep_gemm", "torch", "aiter", "machete", "fbgemm", "conch", "exllama", "emulation", "xpu", "xpu_woq"), folds=True),
        Field("linear_backend_per_quant", "null"),
    ),
    "kv-events-config": (
        Field("enable_kv_cache_events", "bool"), Field("publisher", "", choices=("null", "zmq")), Field("endpoint", "text"), Field("replay_endpoint", "null text"),
        Field("buffer_steps", "bool int"), Field("hwm", "bool int"), Field("max_queue_size", "bool int"), Field("topic", "text"),
    ),
    "kv-transfer-config": (
        Field("kv_connector", "null text"), Field("engine_id", "null text"), Field("kv_buffer_device", "text"),
        Field("kv_role", "null", choices=("kv_producer", "kv_both", "kv_consumer")), Field("kv_port", "bool int"), Field("kv_connector_extra_config", "object"),
        Field("kv_connector_module_path", "null text"), Field("enable_permute_local_kv", "bool"), Field("kv_load_failure_policy", "", choices=("recompute", "fail")),
    ),
    "logging-config": (
        Field("log_level", "", choices=("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "NOTSET")), Field("formatter", "", choices=("text", "json")),
        Field("configure_logging", "bool"), Field("pylogging_config_file", "null text"),
    ),
    "pooler-config": (
        Field("task", "null", choices=("embed", "classify", "token_embed", "token_classify", "plugin", "embed&token_classify")),
        Field("pooling_type", "null", choices=("CLS", "LAST", "MEAN", "ALL", "STEP")), Field("seq_pooling_type", "null", choices=("CLS", "LAST", "MEAN")),
        Field("tok_pooling_type", "null", choices=("ALL", "STEP")), Field("use_activation", "null bool"), Field("enable_flash_late_interaction", "bool"),
        Field("dimensions", "null bool int"), Field("enable_chunked_processing", "bool"), Field("max_embed_len", "null bool int"),
        Field("logit_mean", "null bool int float"), Field("logit_sigma", "null bool int float"), Field("step_tag_id", "null bool int"),
        Field("returned_token_ids", "null list"),
    ),
    "profiler-config": (
        Field("profiler", "null", choices=("torch", "cuda", "proton")), Field("torch_profiler_dir", "text"), Field("torch_profiler_activities", "null"),
        Field("proton_profiler_dir", "text"), Field("proton_context", "", choices=("shadow", "python")), Field("proton_data", "", choices=("tree", "trace")),
        Field("proton_backend", "null", choices=("cupti",)), Field("proton_mode", "null text"), Field("proton_hook", "null", choices=("triton",)),
        Field("proton_output_format", "null", choices=("hatchet", "hatchet_msgpack", "chrome_trace")), Field("proton_graph_attribution", "bool"),
        Field("torch_profiler_with_stack", "bool"), Field("torch_profiler_with_flops", "bool"), Field("torch_profiler_use_gzip", "bool"),
        Field("torch_profiler_dump_cuda_time_total", "bool"), Field("torch_profiler_record_shapes", "bool"), Field("torch_profiler_with_memory", "bool"),
        Field("capture_torch_profiler", "bool"), Field("detailed_trace_annotation", "bool"), Field("ignore_frontend", "bool"), Field("delay_iterations", "bool int"),
        Field("max_iterations", "bool int"), Field("warmup_iterations", "bool int"), Field("active_iterations", "bool int"), Field("wait_iterations", "bool int"),
    ),
    "quantization-config": (
        Field("linear", "null object"), Field("linear.weight", "null bool int float list object"), Field("linear.activation", "null bool int float list object"),
        Field("moe", "null object"), Field("moe.weight", "null bool int float list object"), Field("moe.activation", "null bool int float list object"),
        Field("ignore", "list"), Field("targets", "null bool int float text list object"),
    ),
    "reasoning-config": (
        Field("reasoning_parser", "text"), Field("reasoning_start_str", "text"), Field("reasoning_end_str", "text"),
    ),
    "speculative-config": (
        Field("enforce_eager", "null bool"), Field("num_speculative_tokens", "bool int"), Field("model", "null text"),
        Field("method", "null", choices=("ngram", "medusa", "mlp_speculator", "draft_model", "suffix", "custom_class", "eagle", "eagle3", "extract_hidden_states", "deepseek_mtp", "dots3_note_mtp", "mimo_mtp", "mimo_v2_mtp", "glm4_moe_mtp", "glm4_moe_lite_mtp", "glm_ocr_mtp", "ernie_mtp", "nemotron_h_mtp", "exaone_moe_mtp", "exaone4_5_mtp", "qwen3_next_mtp", "qwen4_exp_mtp", "qwen3_5_mtp", "longcat_flash_mtp", "bailing_hybrid_v3_mtp", "minimax_m3_mtp", "bailing_hybrid_mtp", "mtp", "kimi_k3_mtp", "pangu_ultra_moe_mtp", "step3p5_mtp", "hy_v3_mtp", "hy_v4_mtp", "gemma4_mtp", "inkling_mtp", "glm5_next_mtp", "dflash", "ngram_gpu", "dspark")),
        Field("draft_tensor_parallel_size", "null bool int"), Field("tensor_parallel_size", "null bool int"), Field("quantization", "null text"),
        Field("moe_backend", "null", choices=("auto", "triton", "batched_triton", "deep_gemm", "deep_gemm_mega_moe", "cutlass", "flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_cutedsl", "flashinfer_moe_ep_cutedsl", "flashinfer_b12x", "b12x", "flashinfer_moe_ep_mega_deep_gemm", "marlin", "humming", "triton_unfused", "aiter", "aiter_mega_moe", "aiter_triton_mxfp4_bf16", "flydsl", "hpc", "emulation", "rdna3")),
        Field("attention_backend", "null", choices=("FLASH_ATTN", "FLASH_ATTN_DIFFKV", "TRITON_ATTN", "TRITON_ATTN_DIFFKV", "TRITON_FLASH_ATTN", "ROCM_ATTN", "ROCM_SEGMENTED_ATTN", "ROCM_AITER_MLA", "ROCM_AITER_TRITON_MLA", "ROCM_AITER_FA", "ROCM_AITER_MLA_SPARSE", "XPU_MLA_SPARSE", "TORCH_SDPA", "FLASHINFER", "TRITON_FLASHINFER", "FLASHINFER_MLA", "TOKENSPEED_MLA", "FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM120", "FLASHINFER_MLA_SPARSE_SM90", "TRITON_MLA", "CUTLASS_MLA", "FLASHMLA", "FLASHMLA_SPARSE", "FLASHMLA_SPARSE_DSV4", "FLASHINFER_MLA_SPARSE_DSV4", "ROCM_FLASHMLA_SPARSE_DSV4", "FLASHMLA_SPARSE_DSV41", "FLASHINFER_MLA_SPARSE_DSV41", "FLASHMLA_MEGA_ATTN_DSV41", "B12X", "FLASH_ATTN_MLA", "FLASH_ATTN_MLA_SPARSE", "MINIMAX_M3_SPARSE", "CUTLASS_MSA", "TRITON_MSA", "NO_ATTENTION", "FLEX_ATTENTION", "HPC_ATTN", "ROCM_AITER_UNIFIED_ATTN", "CPU_ATTN", "CPU_MLA", "AMX_MLA", "TURBOQUANT", "ULTRAQUANT", "CUSTOM"), folds=True),
        Field("kv_cache_dtype", "null", choices=("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4_ds_mla", "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "ultraquant_4bit", "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head", "nvfp4", "nvfp4_4over6")),
        Field("max_model_len", "null bool int"), Field("revision", "null text"), Field("code_revision", "null text"),
        Field("index_share_for_mtp_iteration", "null bool"), Field("disable_padded_drafter_batch", "bool"), Field("disable_eagle_block_drop", "bool"),
        Field("use_local_argmax_reduction", "bool"), Field("use_heterogeneous_vocab", "bool"), Field("prompt_lookup_max", "null bool int"),
        Field("prompt_lookup_min", "null bool int"), Field("parallel_drafting", "bool"), Field("target_model_config", "null bool int float text list object"),
        Field("target_parallel_config", "null bool int float text list object"), Field("num_speculative_tokens_per_batch_size", "null list"),
        Field("draft_model_config", "null bool int float text list object"), Field("draft_parallel_config", "null bool int float text list object"),
        Field("suffix_decoding_max_tree_depth", "bool int"), Field("suffix_decoding_max_cached_requests", "bool int"),
        Field("suffix_decoding_max_spec_factor", "bool int float"), Field("suffix_decoding_min_token_prob", "bool int float"),
        Field("draft_load_config", "null object"), Field("draft_load_config.load_format", "text"), Field("draft_load_config.download_dir", "null text"),
        Field("draft_load_config.safetensors_load_strategy", "null", choices=("lazy", "eager", "prefetch", "torchao")),
        Field("draft_load_config.safetensors_prefetch_num_threads", "bool int"), Field("draft_load_config.safetensors_prefetch_block_size", "bool int"),
        Field("draft_load_config.model_loader_extra_config", "null bool int float text list object"), Field("draft_load_config.device", "null text"),
        Field("draft_load_config.ignore_patterns", "text list"), Field("draft_load_config.use_tqdm_on_load", "bool"),
        Field("draft_load_config.pt_load_map_location", "text object"), Field("rejection_sample_method", "", choices=("standard", "synthetic", "block")),
        Field("synthetic_acceptance_rates", "null list"), Field("synthetic_acceptance_length", "null bool int float"), Field("enable_adaptive_verification", "bool"),
        Field("draft_sample_method", "", choices=("greedy", "probabilistic")), Field("dspark_draft_topk", "null bool int"),
    ),
    "structured-outputs-config": (
        Field("backend", "", choices=("auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer")), Field("disable_any_whitespace", "bool"),
        Field("disable_additional_properties", "bool"), Field("reasoning_parser", "text"), Field("reasoning_parser_plugin", "text"),
        Field("enable_in_reasoning", "bool"),
    ),
    "watermark-config": (
        Field("key", "bool int"), Field("algorithm", "", choices=("gumbel", "dual_key_gumbel")), Field("alpha", "bool"), Field("context_width", "bool int"),
        Field("deduplicate_contexts", "", choices=("none", "single_turn", "all")), Field("deduplicate_contexts_max_history", "null bool int"),
        Field("prf", "", choices=("philox",)), Field("allow_target_only_watermarking", "bool"),
    ),
    "weight-transfer-config": (
        Field("backend", "text"),
    ),
}
