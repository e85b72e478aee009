"""What `sparkd endpoint` prints works: each client's text reaches the served engine, and the lengths are its own."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

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
def shown(serving: SparkdNode) -> dict[str, Any]:
    """As a user without rights gets it."""
    found = json.loads(serving.node.run(*NOBODY, "sparkd", "endpoint", "--json").stdout)
    assert isinstance(found, dict)
    return found


def with_key(text: str) -> str:
    """A shell's lines after it got the key as the text says, from the file."""
    return f'export {KEY_VARIABLE}="$(cat /etc/sparkd/api.key)"\n{text}'


def test_it_serves_at_this_address_for_other_machines(serving: SparkdNode, shown: dict[str, Any]) -> None:
    assert (shown["serving"], shown["state"], shown["model"]) == (True, "serving: tiny on port 8000", "tiny")
    assert shown["key_file"] == "/etc/sparkd/api.key"
    assert KEY not in json.dumps(shown)
    host = shown["url"].removeprefix("http://").partition(":")[0]
    assert shown["note"] or host == serving.node.address, shown
    answer = serving.node.http(8000, "/v1/models", headers={"Authorization": f"Bearer {KEY}"})
    (model,) = json.loads(answer.body)["data"]
    assert (model["id"], model["max_model_len"]) == (shown["model"], shown["context_tokens"])


def completion_of(
    serving: SparkdNode, path: str = "/v1/completions", key: str = KEY, **changes: Any
) -> tuple[int, str]:
    """Status and body of a completion."""
    body = {"model": "tiny", "prompt": "Hello", **changes}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    got = serving.node.http(8000, path, method="POST", body=json.dumps(body), timeout=60, headers=headers)
    return got.status, got.body


def test_beside_the_longest_prompt_a_whole_answer_fits_and_beside_a_longer_one_not(
    serving: SparkdNode, shown: dict[str, Any]
) -> None:
    prompt, answer = shown["prompt_tokens"], shown["answer_tokens"]
    assert prompt + answer == shown["context_tokens"] == 512
    for longer, made in ((0, answer), (1, answer - 1)):
        status, body = completion_of(serving, prompt=[5] * (prompt + longer), max_tokens=answer, ignore_eos=True)
        assert (status, json.loads(body)["usage"]["completion_tokens"]) == (200, made), body


def test_the_messages_of_troubleshooting_are_the_engines(serving: SparkdNode) -> None:
    answers = {
        "401": completion_of(serving, key="another"),
        "404": completion_of(serving, model="another"),
        "400": completion_of(serving, prompt=[5] * 513),
        "max_tokens": completion_of(serving, max_tokens=513),
        "cut": completion_of(serving, prompt=[5] * 500, max_tokens=100, ignore_eos=True),
    }
    table = TROUBLESHOOTING.read_text().partition("## At a client\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| (?:HTTP (\d+)|[^`|]*) ?`([^`]+)`", table, re.MULTILINE)
    assert len(rows) >= 6
    for status, message in rows:
        answered = [f"{code} {body}" for code, body in answers.values() if message in body]
        assert answered or message in ("default chat template", "/readyz"), (message, answers)
        assert not answered or answered[0].startswith(status), (status, answered)


def test_curl_gets_an_answer(serving: SparkdNode) -> None:
    text = serving.node.run(*NOBODY, "sparkd", "endpoint", "--client", "curl").stdout
    answer = json.loads(serving.node.sh(with_key(text.replace("curl ", "curl -fsS ", 1))).stdout)
    assert answer["usage"]["completion_tokens"] > 0


def test_openais_sdk_gets_an_answer(serving: SparkdNode, shown: dict[str, Any]) -> None:
    """That of the engine's own image."""
    run = f"docker exec -i -e {KEY_VARIABLE} sparkd-rank0 python3 -"
    done = serving.node.sh(with_key(run), input=shown["clients"]["openai"])
    assert done.stdout.strip(), done.stderr


def test_what_open_webui_reads_gets_an_answer(serving: SparkdNode, shown: dict[str, Any]) -> None:
    body = (
        '{\\"model\\": \\"$DEFAULT_MODELS\\", \\"messages\\": [{\\"role\\": \\"user\\", \\"content\\": \\"Hello\\"}]}'
    )
    command = f'{shown["clients"]["open-webui"]}curl -fsS "$OPENAI_API_BASE_URL/chat/completions" -d "{body}" '
    command += "-H 'Content-Type: application/json' -H \"Authorization: Bearer $OPENAI_API_KEY\""
    assert json.loads(serving.node.sh(with_key(command)).stdout)["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("name", ["hermes", "continue", "litellm"])
def test_what_a_file_names_gets_an_answer(name: str, serving: SparkdNode, shown: dict[str, Any]) -> None:
    document = yaml.safe_load(shown["clients"][name])
    if name == "hermes":
        url, model = document["custom_providers"][0]["base_url"], document["model"]["default"]
        tokens = document["model"]["max_tokens"]
    elif name == "continue":
        (one,) = document["models"]
        url, model, tokens = one["apiBase"], one["model"], one["defaultCompletionOptions"]["maxTokens"]
    else:
        params = document["model_list"][0]["litellm_params"]
        url, model = params["api_base"], params["model"].removeprefix("hosted_vllm/")
        tokens = params["max_tokens"]
    body = json.dumps({"model": model, "max_tokens": tokens, "messages": [{"role": "user", "content": "Hello"}]})
    command = f"curl -fsS {shlex.quote(f'{url}/chat/completions')} -H 'Content-Type: application/json' "
    command += f'-H "Authorization: Bearer ${KEY_VARIABLE}" -d {shlex.quote(body)}'
    assert json.loads(serving.node.sh(with_key(command)).stdout)["usage"]["completion_tokens"] > 0


def test_every_client_is_tried(shown: dict[str, Any]) -> None:
    tried = {"curl", "openai", "open-webui", "hermes", "continue", "litellm"}
    assert set(shown["clients"]) == set(CLIENTS) == tried


@pytest.mark.whole
def test_litellm_itself_answers_and_refuses_a_longer_prompt(serving: SparkdNode, shown: dict[str, Any]) -> None:
    def build(target: Path) -> None:
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
        # The engine's image has what LiteLLM imports.
        subprocess.run([*pip, "--no-deps", "--target", str(target), *LITELLM], check=True)

    folder = cache.artefact("litellm", cache.recipe_key(*LITELLM), "", build)
    serving.node.put(folder, "/root/litellm")
    serving.node.sh("docker cp -q /root/litellm sparkd-rank0:/opt/litellm")
    run = f"docker exec -i -e {KEY_VARIABLE} sparkd-rank0 python3 -c {shlex.quote(BY_LITELLM)}"
    done = serving.node.sh(with_key(run), input=shown["clients"]["litellm"], timeout=300)
    tokens, refusal = done.stdout.split()[-2:]
    assert int(tokens) > 0
    assert refusal == "ContextWindowExceededError", done.stdout


def test_stopped_it_still_says_where_and_that_nothing_serves(serving: SparkdNode, shown: dict[str, Any]) -> None:
    serving.stop()
    done = serving.node.run(*NOBODY, "sparkd", "endpoint")
    assert f"url                  {shown['url']}" in done.stdout
    assert "no agent runs on this node: systemctl status sparkd-head" in done.stdout


@pytest.mark.parametrize("condition", CONDITIONS)
def test_commands_work_or_say_why_while_no_agent_runs(condition: str, serving: SparkdNode) -> None:
    """test_commands.py has all of them."""
    for name in ("status", "endpoint", "use", "init", "config check"):
        outcome = run_command(serving.node, name, condition)
        assert not outcome.problem(name, condition), (name, outcome)
