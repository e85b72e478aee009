"""Flags that are known to serve well, and scripts that start an engine with flags of their own."""

GOOD: dict[str, str | None] = {
    "gpu-memory-utilization": "0.90",
    "max-model-len": "131072",
    "max-num-seqs": "8",
    "max-num-batched-tokens": "16384",
    "compilation-config": '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}',
    "speculative-config": '{"method":"deepseek_mtp","num_speculative_tokens":2}',
}
HEAD, WORKER = (0, 2, "10.0.0.1", 29501), (1, 2, "10.0.0.1", 29501)
SERVE = "vllm serve /m -tp 2 --nnodes 2 --master-addr 10.0.0.1 --master-port 29501 --node-rank"
BY_ROLE = f"if [ $RANK = 0 ]; then exec {SERVE} 0\nelse exec {SERVE} 1 --headless; fi"
