"""What the vLLM of an image answers where it is queried for its flags."""

import base64
import json
import zlib

ONE_FLAG = {"version": "0.1.dev1", "flags": [{"name": "max-model-len", "kind": "int"}], "fields": {}}
"""A fork that has one flag."""


def packed(content: object, separators: tuple[str, str] | None = None) -> str:
    """The line of the log that carries the answer."""
    text = json.dumps(content, separators=separators)
    return "sparkd-vllm-parser:" + base64.b85encode(zlib.compress(text.encode())).decode()
