"""At a client: texts and lengths of `sparkd endpoint` hold, and the messages are those of troubleshooting.md.

The last tests stop the agent and try commands without one, on the node that these tests have booted already.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tests.bed import cache
from tests.bed.conditions import CONDITIONS, run_command
from tests.bed.conftest import MakeNode
from tests.bed.sparkd_node import SparkdNode

from sparkd.base.vllm.args import KEY_VARIABLE
from sparkd.tools.node.clients import CLIENTS

KEY = "s3cret-\\of-'the'-tests"
CONFIGURATION = """\
[engine]
recipe = "tiny-cpu"
[engine.args]
chat-template = "/models/template.jinja"
[engine.secrets]
VLLM_API_KEY = "/etc/sparkd/api.key"
"""
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""The tiny model has none."""
REQUEST_OF_OPEN_WEBUI = """\
curl -fsS "$OPENAI_API_BASE_URL/chat/completions" -H 'Content-Type: application/json' \\
  -H "Authorization: Bearer $OPENAI_API_KEY" -d @- <<END
{"model": "$DEFAULT_MODELS", "messages": [{"role": "user", "content": "Hello"}]}
END
"""
"""A request with the variables that Open WebUI reads."""
MESSAGES_ELSEWHERE = ("default chat template", "/readyz")
"""Of a model without a template, while this one has one, and of the observers' listener."""
TROUBLESHOOTING = Path(__file__).parents[2] / "docs/troubleshooting.md"
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
LITELLM = (
    "litellm==1.109.1",
    "fastuuid==0.14.0",
    "importlib-metadata==8.7.0",
    "zipp==3.23.0",
    "h2==4.4.1",
    "hyperframe==6.1.0",
)
BY_LITELLM = """\
import sys
sys.path.append("/opt/litellm")
import litellm, yaml
config = yaml.safe_load(sys.stdin)
router = litellm.Router(model_list=config["model_list"], **config["router_settings"])
name = config["model_list"][0]["model_name"]
send = lambda text: router.completion(model=name, messages=[{"role": "user", "content": text}])
print(send("Hello").usage.completion_tokens)
try:
    send("Hello " * 600)
except Exception as error:
    print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def serving(make_node: MakeNode, package: Path) -> SparkdNode:
    """A node that serves with a key and a chat template."""
    spark = SparkdNode(make_node("trixie", package))
    spark.node.write("/etc/sparkd/api.key", KEY + "\n")
    spark.node.run("chmod", "600", "/etc/sparkd/api.key")
    spark.node.write("/srv/models/template.jinja", TEMPLATE)
    spark.configure(CONFIGURATION)
    spark.start()
    return spark


@pytest.fixture(scope="module")
def endpoint(serving: SparkdNode) -> dict[str, Any]:
    """What `sparkd endpoint` shows to a user without rights."""
    answer = json.loads(serving.node.run(*NOBODY, "sparkd", "endpoint", "--json").stdout)
    assert isinstance(answer, dict)
    return answer


def with_key(text: str) -> str:
    """A shell's lines after it got the key as the text says, from the file."""
    return f'export {KEY_VARIABLE}="$(cat /etc/sparkd/api.key)"\n{text}'


def test_it_serves_at_this_address_for_other_machines(serving: SparkdNode, endpoint: dict[str, Any]) -> None:
    assert (endpoint["serving"], endpoint["state"]) == (True, "serving: tiny on port 8000")
    assert endpoint["model"] == "tiny"
    assert endpoint["key_file"] == "/etc/sparkd/api.key"
    assert KEY not in json.dumps(endpoint)
    assert endpoint["url"] == f"http://{serving.node.address}:8000/v1"
    assert endpoint["note"] == ""
    answer = serving.node.http(8000, "/v1/models", headers={"Authorization": f"Bearer {KEY}"})
    (model,) = json.loads(answer.body)["data"]
    assert (model["id"], model["max_model_len"]) == (endpoint["model"], endpoint["context_tokens"])


def request_completion(
    serving: SparkdNode, path: str = "/v1/completions", key: str = KEY, **changes: Any
) -> tuple[int, str]:
    """Request a completion. Returns its status and its body."""
    body = {"model": "tiny", "prompt": "Hello", **changes}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    answer = serving.node.http(8000, path, method="POST", body=json.dumps(body), timeout=60, headers=headers)
    return answer.status, answer.body


def count_tokens(body: str) -> int:
    """The length of the answer in the body of a completion."""
    tokens: int = json.loads(body)["usage"]["completion_tokens"]
    return tokens


def test_beside_the_longest_prompt_a_whole_answer_fits_and_beside_a_longer_one_not(
    serving: SparkdNode, endpoint: dict[str, Any]
) -> None:
    prompt_tokens, answer_tokens = endpoint["prompt_tokens"], endpoint["answer_tokens"]
    assert prompt_tokens + answer_tokens == endpoint["context_tokens"] == 512
    for excess in (0, 1):
        prompt = [5] * (prompt_tokens + excess)
        status, body = request_completion(serving, prompt=prompt, max_tokens=answer_tokens, ignore_eos=True)
        assert (status, count_tokens(body)) == (200, answer_tokens - excess), body


def read_documented_messages() -> list[tuple[str, str]]:
    """HTTP status, empty where a row has none, and message of each row of the table in troubleshooting.md."""
    table = TROUBLESHOOTING.read_text().partition("## At a client\n")[2].partition("\n#")[0]
    return re.findall(r"^\| (?:HTTP (\d+)|[^`|]*) ?`([^`]+)`", table, re.MULTILINE)


def test_the_messages_of_troubleshooting_are_the_engines(serving: SparkdNode) -> None:
    messages = read_documented_messages()
    assert len(messages) >= 6
    answers = [
        request_completion(serving, key="another"),
        request_completion(serving, model="another"),
        request_completion(serving, prompt=[5] * 513),
        request_completion(serving, max_tokens=513),
        request_completion(serving, prompt=[5] * 500, max_tokens=100, ignore_eos=True),
    ]
    for documented_status, message in messages:
        if message not in MESSAGES_ELSEWHERE:
            statuses = {str(status) for status, body in answers if message in body}
            assert statuses, (message, answers)
            assert documented_status in ("", *statuses), (message, statuses)


class Target(NamedTuple):
    """Where a client sends its requests, by its configuration."""

    url: str
    model: str
    answer_tokens: int


def read_hermes(document: dict[str, Any]) -> Target:
    model = document["model"]
    return Target(document["custom_providers"][0]["base_url"], model["default"], model["max_tokens"])


def read_continue(document: dict[str, Any]) -> Target:
    (model,) = document["models"]
    return Target(model["apiBase"], model["model"], model["defaultCompletionOptions"]["maxTokens"])


def read_litellm(document: dict[str, Any]) -> Target:
    parameters = document["model_list"][0]["litellm_params"]
    return Target(parameters["api_base"], parameters["model"].removeprefix("hosted_vllm/"), parameters["max_tokens"])


def try_curl(serving: SparkdNode, text: str) -> None:
    assert count_tokens(serving.node.sh(with_key(text.replace("curl ", "curl -fsS ", 1))).stdout) > 0


def try_openai(serving: SparkdNode, text: str) -> None:
    """The engine's own image has the SDK."""
    done = serving.node.sh(with_key(f"docker exec -i -e {KEY_VARIABLE} sparkd-rank0 python3 -"), input=text)
    assert done.stdout.strip(), done.stderr


def try_open_webui(serving: SparkdNode, text: str) -> None:
    assert count_tokens(serving.node.sh(with_key(text + REQUEST_OF_OPEN_WEBUI)).stdout) > 0


def try_file(read: Callable[[dict[str, Any]], Target], serving: SparkdNode, text: str) -> None:
    """A request to where the client's file leads. `read` takes the file's content."""
    target = read(yaml.safe_load(text))
    message = {"role": "user", "content": "Hello"}
    body = json.dumps({"model": target.model, "max_tokens": target.answer_tokens, "messages": [message]})
    words = ("curl", "-fsS", f"{target.url}/chat/completions", "-H", "Content-Type: application/json", "-d", body)
    command = f'{shlex.join(words)} -H "Authorization: Bearer ${KEY_VARIABLE}"'
    assert count_tokens(serving.node.sh(with_key(command)).stdout) > 0


TRIALS: dict[str, Callable[[SparkdNode, str], None]] = {
    "curl": try_curl,
    "openai": try_openai,
    "open-webui": try_open_webui,
    "hermes": partial(try_file, read_hermes),
    "continue": partial(try_file, read_continue),
    "litellm": partial(try_file, read_litellm),
}
"""Uses of each client's text, which fail where they get no answer."""


@pytest.mark.parametrize("name", TRIALS)
def test_the_text_for_a_client_gets_an_answer(name: str, serving: SparkdNode, endpoint: dict[str, Any]) -> None:
    text = serving.node.run(*NOBODY, "sparkd", "endpoint", "--client", name).stdout
    assert text.endswith(endpoint["clients"][name])
    TRIALS[name](serving, text)


def test_every_client_is_tried(endpoint: dict[str, Any]) -> None:
    assert set(TRIALS) == set(CLIENTS) == set(endpoint["clients"])


@pytest.mark.whole
def test_litellm_itself_answers_and_refuses_a_longer_prompt(serving: SparkdNode, endpoint: dict[str, Any]) -> None:
    def build(target: Path) -> None:
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
        # The engine's image has what LiteLLM imports.
        subprocess.run([*pip, "--no-deps", "--target", str(target), *LITELLM], check=True)

    folder = cache.artefact("litellm", cache.recipe_key(*LITELLM), "", build)
    serving.node.put(folder, "/root/litellm")
    serving.node.sh("docker cp -q /root/litellm sparkd-rank0:/opt/litellm")
    run = f"docker exec -i -e {KEY_VARIABLE} sparkd-rank0 python3 -c {shlex.quote(BY_LITELLM)}"
    done = serving.node.sh(with_key(run), input=endpoint["clients"]["litellm"], timeout=300)
    tokens, refusal = done.stdout.split()[-2:]
    assert int(tokens) > 0
    assert refusal == "ContextWindowExceededError", done.stdout


@pytest.fixture(scope="module")
def stopped(serving: SparkdNode) -> SparkdNode:
    """The node without an agent, for the last tests of this file: nothing starts it again."""
    serving.stop()
    return serving


def test_stopped_it_still_says_where_and_that_nothing_serves(stopped: SparkdNode, endpoint: dict[str, Any]) -> None:
    done = stopped.node.run(*NOBODY, "sparkd", "endpoint")
    assert f"url                  {endpoint['url']}" in done.stdout
    assert "no agent runs on this node: sparkd status" in done.stdout


@pytest.mark.parametrize("condition", CONDITIONS)
def test_commands_work_or_say_why_while_no_agent_runs(condition: str, stopped: SparkdNode) -> None:
    """Five of them in every bed. test_commands.py has all, in the whole one."""
    for name in ("status", "endpoint", "use", "init", "config check"):
        outcome = run_command(stopped.node, name, condition)
        assert not outcome.problem(name, condition), (name, outcome)
