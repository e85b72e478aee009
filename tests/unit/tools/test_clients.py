"""Texts for clients: each in its program's own form, with one endpoint, and lengths that stay within the context."""

import ast
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import ValidationError, toml
from tests.unit.engine_server import engine

from sparkd.base.vllm.args import KEY_VARIABLE
from sparkd.tools.node.clients import ANSWER_TOKENS, CLIENTS, Client, ClientEndpoint, snippet

HOSTILE = """it's "$(touch owned)" `x` \\ ${y}: #1"""
IN_YAML = ("litellm", "hermes", "continue")


def offer(model: str = "m", context: int | None = 200_000, *, keyed: bool = True, port: int = 8000) -> ClientEndpoint:
    return ClientEndpoint(f"http://127.0.0.1:{port}/v1", model, context, keyed)


def document(name: str, endpoint: ClientEndpoint) -> Any:
    return yaml.safe_load(snippet(name, endpoint))


def sourced(text: str, folder: Path, *names: str) -> list[str]:
    """What a shell has in these variables after the text."""
    done = subprocess.run(
        ["sh", "-euc", f'{text}\nfor name in {" ".join(names)}; do eval "printf \'%s\\\\0\' \\"\\$$name\\""; done'],
        capture_output=True, text=True, check=True, cwd=folder, env={KEY_VARIABLE: "k e'y"},
    )  # fmt: skip
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize(
    ("context", "answer", "prompt"),
    [(200_000, ANSWER_TOKENS, 191_808), (4096, 1024, 3072), (1, 0, None), (None, None, None)],
)
def test_prompt_and_answer_are_the_context(context: int | None, answer: int | None, prompt: int | None) -> None:
    endpoint = offer(context=context)
    assert endpoint.answer_tokens == answer
    assert endpoint.prompt_tokens == prompt


@pytest.mark.parametrize("model", ["m", HOSTILE])
def test_litellm_gets_url_model_and_lengths_and_checks_prompts_first(model: str) -> None:
    endpoint = offer(model)
    settings = document("litellm", endpoint)
    (deployment,) = settings["model_list"]
    assert deployment["model_name"] == model
    params, info = deployment["litellm_params"], deployment["model_info"]
    assert params["model"] == f"hosted_vllm/{model}"
    assert params["api_base"] == endpoint.url
    assert params["api_key"] == f"os.environ/{KEY_VARIABLE}"
    assert info["max_input_tokens"] + info["max_output_tokens"] == endpoint.context_tokens
    assert params["max_tokens"] == info["max_output_tokens"] == endpoint.answer_tokens
    assert settings["router_settings"] == {"enable_pre_call_checks": True}


@pytest.mark.parametrize("model", ["m", HOSTILE])
def test_hermes_gets_url_model_and_lengths(model: str) -> None:
    endpoint = offer(model)
    settings = document("hermes", endpoint)
    (provider,) = settings["custom_providers"]
    assert provider["base_url"] == endpoint.url
    assert provider["key_env"] == KEY_VARIABLE
    assert provider["models"] == {model: {"context_length": endpoint.context_tokens}}
    assert settings["model"]["provider"] == f"custom:{provider['name']}"
    assert settings["model"]["default"] == model
    assert settings["model"]["max_tokens"] == endpoint.answer_tokens


@pytest.mark.parametrize("model", ["m", HOSTILE])
def test_continue_gets_url_model_and_lengths(model: str) -> None:
    endpoint = offer(model)
    (listed,) = document("continue", endpoint)["models"]
    assert listed["model"] == model
    assert listed["apiBase"] == endpoint.url
    assert listed["apiKey"] == f"${{{{ secrets.{KEY_VARIABLE} }}}}"
    lengths = {"contextLength": endpoint.context_tokens, "maxTokens": endpoint.answer_tokens}
    assert listed["defaultCompletionOptions"] == lengths


@pytest.mark.parametrize("model", ["m", HOSTILE])
def test_a_shell_gets_what_open_webui_reads(model: str, tmp_path: Path) -> None:
    text = snippet("open-webui", offer(model))
    names = ("OPENAI_API_BASE_URL", "OPENAI_API_KEY", "DEFAULT_MODELS", "DEFAULT_MODEL_PARAMS")
    url, key, models, params = sourced(text, tmp_path, *names)
    assert url == offer().url
    assert key == "k e'y"
    assert models == model
    assert json.loads(params) == {"max_tokens": ANSWER_TOKENS}
    assert not list(tmp_path.iterdir()), "the name of a model is never run"


@pytest.mark.parametrize("keyed", [True, False])
def test_curl_sends_the_request_with_the_key(keyed: bool, tmp_path: Path) -> None:
    requests: list[tuple[str, str]] = []

    def reply(request: str, key: str) -> tuple[int, bytes]:
        requests.append((request, key))
        return 200, b"{}"

    with engine(reply) as port:
        text = snippet("curl", offer(HOSTILE, keyed=keyed, port=port)).replace("curl ", "curl -fsS ", 1)
        assert sourced(text, tmp_path) == []
    assert requests == [("POST /v1/chat/completions", "Bearer k e'y" if keyed else "")]
    assert not list(tmp_path.iterdir())


def test_the_python_text_names_url_model_and_key_as_literals() -> None:
    calls = [node for node in ast.walk(ast.parse(snippet("openai", offer(HOSTILE)))) if isinstance(node, ast.Call)]
    arguments = {word.arg: ast.unparse(word.value) for call in calls for word in call.keywords}
    assert ast.literal_eval(arguments["model"]) == HOSTILE
    assert ast.literal_eval(arguments["base_url"]) == offer().url
    assert arguments["api_key"] == f"os.environ['{KEY_VARIABLE}']"
    assert int(arguments["max_tokens"]) == ANSWER_TOKENS


@pytest.mark.parametrize("name", CLIENTS)
def test_what_is_not_known_is_left_out(name: str) -> None:
    text = snippet(name, offer(context=None, keyed=False))
    assert "None" not in text
    assert KEY_VARIABLE not in text
    assert str(ANSWER_TOKENS) not in text


@pytest.mark.parametrize("name", IN_YAML)
def test_without_what_is_not_known_a_document_still_parses(name: str) -> None:
    assert document(name, offer(context=None, keyed=False))


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ('title = "t"\nlimited_by = "l"', "missing required field `template`"),
        ('title = "t"\nlimited_by = "l"\ntemplate = "x"\ntext = "x"', "unknown field `text`"),
        ('title = "t"\nlimited_by = 1\ntemplate = "x"', "Expected `str`"),
    ],
)
def test_the_file_is_read_strictly(entry: str, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        toml.decode(f"[some]\n{entry}\n", type=dict[str, Client])
