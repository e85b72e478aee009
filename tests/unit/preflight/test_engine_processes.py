"""Which arguments are a `vllm serve`."""

import pytest

from sparkd.agent.preflight.engine_processes import is_serve


@pytest.mark.parametrize(
    ("argv", "serves"),
    [
        (("vllm", "serve", "m"), True),
        (("/opt/vllm/bin/vllm", "serve"), True),
        (("/opt/vllm/bin/python3.11", "/opt/vllm/bin/vllm", "serve"), True),
        (("python3", "-B", "-X", "dev", "/usr/local/bin/vllm", "serve"), True),
        (("python3", "-m", "vllm.entrypoints.openai.api_server"), True),
        (("python3", "-I", "-m", "vllm", "serve"), True),
        (("vllm", "bench", "serve"), False),
        (("vllm",), False),
        (("python3", "-c", "vllm", "serve"), False),
        (("python3", "-m", "vllm", "bench"), False),
        (("python3", "-m", "pytest", "vllm.entrypoints"), False),
        (("python3", "vllm-watch.py", "serve"), False),
        (("grep", "vllm", "serve"), False),
        (("bash", "-c", "vllm serve"), False),
        ((), False),
    ],
)
def test_vllm_serve_is_recognised_by_its_arguments(argv: tuple[str, ...], serves: bool) -> None:
    assert is_serve(argv) is serves
