# The first GPU at full load for 13 s: bf16 matrix products, then copies within its memory.
# `sparkd preflight --deep` runs this by bash in the recipe's image. The last line is the result, with times of
# CLOCK_MONOTONIC. torch is with one of the pythons below.
program=$(cat <<'PROGRAM'
import json
import os
import time

os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the first GPU is then NVML's first

import torch

WARM_SECONDS, PRODUCT_SECONDS, COPY_SECONDS = 3, 8, 2
SIDE, COPY_BYTES = 8192, 1 << 30
BATCH = 4


def repeat(work, seconds):
    """Runs a second; begin and end."""
    torch.cuda.synchronize()
    began = ended = time.monotonic()
    runs = 0
    while ended - began < seconds:
        for _ in range(BATCH):
            work()
        torch.cuda.synchronize()
        runs += BATCH
        ended = time.monotonic()
    return runs / (ended - began), began, ended


# Random: a GPU draws less power for products of zeros, and has higher clocks.
left, right = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
product = torch.empty_like(left)
source = torch.ones(COPY_BYTES, device="cuda", dtype=torch.uint8)
target = torch.empty_like(source)

repeat(lambda: torch.mm(left, right, out=product), WARM_SECONDS)
products, began, ended = repeat(lambda: torch.mm(left, right, out=product), PRODUCT_SECONDS)
copies, _, _ = repeat(lambda: target.copy_(source), COPY_SECONDS)
result = {
    "began": began,
    "ended": ended,
    "tflops": products * 2 * SIDE**3 / 1e12,
    "copy_gbps": copies * 2 * COPY_BYTES / 1e9,
}
print(json.dumps(result), flush=True)
PROGRAM
)
for python in python3 /opt/env/bin/python3 /opt/venv/bin/python3; do
    "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null &&
        exec "$python" -c "$program"
done
echo 'no python3 of this image has torch'
exit 1
