"""The port of the API, which no other program of the node may have."""

import re
from collections.abc import Iterator, Mapping

from sparkd.base.config import Settings
from sparkd.base.lib.errors import ConfigError
from sparkd.base.vllm.args import JsonValue, parse_count
from sparkd.base.vllm.flag import parse_json
from sparkd.base.vllm.flag_values import DATA_SIZE

API_PORT = 8000
"""vLLM's own (vllm/entrypoints/openai/cli_args.py)."""
HIGHEST_PORT = 65535
_PORT_VARIABLE = re.compile(r"VLLM_\w+_PORT")
"""Variables with a port. VLLM_PORT does not match: from that port on, vLLM looks for a free one."""


def api_port(recipe: str, args: Mapping[str, JsonValue], env: Mapping[str, str], settings: Settings) -> int:
    """The port of the API. Raises ConfigError where that is no port, or where any port is given twice.

    `args` and `env` have no placeholders left.
    """
    text = args.get("port")
    port = parse_count(API_PORT if text is None else text, HIGHEST_PORT)
    if not port:
        raise ConfigError(f"recipe {recipe}: args.port is {text!r}: a number from 1 to {HIGHEST_PORT} is needed")
    taken = {number: key for key, number in settings.ports.items()}
    for key, value in [("args.port", port), *_further_ports(args, env)]:
        number = parse_count(value, HIGHEST_PORT)
        if number and (other := taken.setdefault(number, key)) != key:
            raise ConfigError(f"recipe {recipe}: {key} is {number}, the port of {other}", "change one")
    return port


def _further_ports(args: Mapping[str, JsonValue], env: Mapping[str, str]) -> Iterator[tuple[str, JsonValue]]:
    """Keys and values of further ports. Those of data parallelism count only with more than one of its ranks."""
    parallel = (parse_count(args.get(DATA_SIZE), HIGHEST_PORT) or 1) > 1
    for flag, value in args.items():
        if flag.endswith("-port") and (parallel or not flag.startswith("data-parallel-")):
            yield f"args.{flag}", value
    transfer = args.get("kv-transfer-config")
    table = parse_json(transfer) if isinstance(transfer, str) else transfer
    if isinstance(table, dict):
        yield "args.kv-transfer-config.kv_port", table.get("kv_port")
    yield "args.kv-transfer-config.kv_port", args.get("kv-transfer-config.kv_port")
    yield from ((f"env.{name}", text) for name, text in env.items() if _PORT_VARIABLE.fullmatch(name))
