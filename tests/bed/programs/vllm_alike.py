#!/usr/bin/python3 -IS
"""The command `vllm` without a model: `vllm serve MODEL [FLAG...]` serves at its --port, under its --served-model-name.

It runs endpoint_alike.py, which is in /opt/alike.
"""

import json
import runpy
import signal
import sys


def option(name: str, default: str) -> str:
    words = [part for word in sys.argv[3:] for part in (word.split("=", 1) if word.startswith("--") else [word])]
    return words[words.index(name) + 1] if name in words else default


served = option("--served-model-name", option("--model", sys.argv[2]))
card = {"id": served, "object": "model", "max_model_len": 512}
alike = runpy.run_path("/opt/alike/endpoint_alike.py")
alike["BODIES"]["GET /v1/models"] = json.dumps({"object": "list", "data": [card]})
signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit())  # as a container's first process, too
alike["main"](int(option("--port", "8000")), "serving")
