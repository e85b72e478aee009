"""Well-formed nonsense is tested by log-probabilities, over HTTP; what the engine refuses is skipped and reported."""

import asyncio
import json
import math
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from typing import Any

import pytest
from tests.unit.engine_server import serve

from sparkd.base.vllm.api import Endpoint
from sparkd.base.vllm.capabilities import Capabilities
from sparkd.base.vllm.logprobs import MOST_APART
from sparkd.base.vllm.smoke import PROMPTS, Round, run_short
from sparkd.tools.cli.smoke import render_round

VOCABULARY = 256
LIKELY, UNLIKELY = math.log(0.5), math.log(0.5 / (VOCABULARY - 1))
OUT_OF_RANGE = b'{"error": {"message": "Out of range float values are not JSON compliant: nan"}}'
KNOWN, AGAIN, AT_ONCE = "known texts", "scored again", "same, 6 at once"


def follower(token: int, request: int) -> int:
    """The likely follower in the first request; another one in each later `request`."""
    return (7 * token + 3 + request) % VOCABULARY


class Model:
    """Its tokens are bytes. `text`: the log-probability that it gives each token of a text."""

    def __init__(self, symptom: str = "", text: float = -1.5) -> None:
        self.symptom, self.text = symptom, text
        self.scored = 0
        self._six = threading.Barrier(len(PROMPTS))
        self._requests = Counter[bytes]()

    def answer(self, body: dict[str, Any]) -> tuple[int, bytes]:
        if "logprobs" not in body and "prompt_logprobs" not in body:
            tokens = body["max_tokens"]
            choice: dict[str, Any] = {"text": " 9, 10, 11,", "finish_reason": "length"}
            return 200, json.dumps({"choices": [choice], "usage": {"completion_tokens": tokens}}).encode()
        prompt = body["prompt"]
        ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
        if "prompt_logprobs" not in body:
            return 200, json.dumps({"choices": [self._write(ids, body["max_tokens"])]}).encode()
        self.scored += 1
        assert body["prompt_logprobs"] == 0
        if self.symptom in REFUSED:
            return REFUSED[self.symptom]
        logprobs = [self.text if isinstance(prompt, str) else self._likeliness(*pair) for pair in pairwise(ids)]
        positions: list[Any] = [
            None,
            *({str(i): {"logprob": p, "rank": 1}} for i, p in zip(ids[1:], logprobs, strict=True)),
        ]
        if self.symptom in POSITIONS:
            positions[2] = POSITIONS[self.symptom]
        return 200, json.dumps({"choices": [{"text": "", "prompt_logprobs": positions}]}).encode()

    def _likeliness(self, token: int, then: int) -> float:
        return LIKELY if then == follower(token, 0) else UNLIKELY

    def _write(self, prompt: list[int], count: int) -> dict[str, Any]:
        garbled = self.symptom == "garbled" and self._at_once(bytes(prompt))
        last, written = prompt[-1], list[int]()
        for number in range(count):
            last = follower(last, 1 if garbled and number > 3 else 0)
            written.append(last)
        own = LIKELY + (0.9 * MOST_APART if self.symptom == "rounded" else 0)
        logprobs = [own] * (count - (self.symptom == "short"))
        if self.symptom == "no numbers":
            return {"text": "", "logprobs": {"token_logprobs": logprobs}}
        return {"token_ids": written, "prompt_token_ids": prompt, "logprobs": {"token_logprobs": logprobs}}

    def _at_once(self, prompt: bytes) -> bool:
        """Whether the others come beside it. Two are sent alone first, each time that all is tried."""
        self._requests[prompt] += 1
        if prompt.decode() in PROMPTS[:2] and self._requests[prompt] % 2:
            return False
        self._six.wait(5)
        return True


REFUSED = {
    "refused": (400, b'{"error": {"message": "no prompt_logprobs here"}}'),
    "none": (200, b'{"choices": [{"text": "", "prompt_logprobs": null}]}'),
    "nan by 400": (400, OUT_OF_RANGE),
    "nan by 500": (500, OUT_OF_RANGE),
    "no choice": (200, b'{"choices": []}'),
    "no json": (200, b"<html>"),
    "deep": (200, b"[" * 100_000),
}
POSITIONS: dict[str, Any] = {
    "nan": {"5": {"logprob": math.nan}},
    "infinite": {"5": {"logprob": -math.inf}},
    "null": {"5": {"logprob": None}},
    "text": {"5": {"logprob": "-1"}},
    "above 0": {"5": {"logprob": 3.0}},
    "no number": {"x": {"logprob": -1.0}},
    "huge number": {"99999999999": {"logprob": -1.0}},
    "lost": None,
    "two": {"5": {"logprob": -1.0}, "6": {"logprob": -1.0}},
}


@contextmanager
def serving(model: Model) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            status, content = model.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with serve(Handler) as port:
        yield port


def rounds(model: Model, capabilities: Capabilities = Capabilities()) -> dict[str, Round]:  # noqa: B008 - it is frozen
    with serving(model) as port:
        tested = asyncio.run(run_short(Endpoint("127.0.0.1", port, "tiny"), capabilities, 5, step_seconds=0.01))
    assert all(len(line) <= 80 for round_ in tested for line in render_round(round_))
    return {round_.name: round_ for round_ in tested if round_.name in (KNOWN, AGAIN, AT_ONCE)}


def test_a_model_that_knows_texts_and_agrees_with_itself_passes() -> None:
    tested = rounds(Model())
    assert [(round_.answers, round_.faults, round_.skipped) for round_ in tested.values()] == [
        (8, (), ""),
        (2, (), ""),
        (6, (), ""),
    ]
    assert tested[KNOWN].note == "-1.50 a token"


@pytest.mark.parametrize(
    ("text", "bad"), [(-math.log(VOCABULARY), True), (-9.0, True), (-3.9, True), (-3.8, False), (-0.1, False)]
)
def test_known_texts_no_better_than_by_chance_are_found(text: float, bad: bool) -> None:
    """The highest byte of the texts is 125, so the bound is 0.8 * ln 127 = 3.88."""
    tested = rounds(Model(text=text))
    assert bool(tested[KNOWN].faults) is bad
    assert not tested[AGAIN].faults


@pytest.mark.parametrize(("expected", "bad"), [(-1.2, True), (-1.45, False), (-3.0, False), (None, False)])
def test_known_texts_much_worse_than_the_recipe_expects_are_found(expected: float | None, bad: bool) -> None:
    assert bool(rounds(Model(text=-1.5), Capabilities(text_logprob=expected))[KNOWN].faults) is bad


def test_answers_that_are_garbled_only_at_once_are_found() -> None:
    tested = rounds(Model("garbled"))
    assert not tested[AGAIN].faults
    assert len(tested[AT_ONCE].faults) == 6
    assert "nats off its own score" in tested[AT_ONCE].faults[0]


def test_rounding_is_no_fault() -> None:
    assert not any(round_.faults for round_ in rounds(Model("rounded")).values())


def assert_skipped(round_: Round, reason: str) -> None:
    assert reason in round_.skipped
    assert not round_.faults
    assert not round_.answers
    second_line = render_round(round_)[1]
    assert second_line.startswith("  skipped: ")
    assert reason in second_line


@pytest.mark.parametrize(("symptom", "reason"), [("refused", "HTTP 400"), ("none", "no log-probabilities of prompts")])
def test_what_the_engine_refuses_is_skipped_with_the_reason(symptom: str, reason: str) -> None:
    for round_ in rounds(Model(symptom)).values():
        assert_skipped(round_, reason)


def test_an_engine_that_numbers_no_tokens_of_its_answers_is_judged_by_known_texts_alone() -> None:
    tested = rounds(Model("no numbers"))
    assert tested[KNOWN].note
    for name in (AGAIN, AT_ONCE):
        assert_skipped(tested[name], "an answer's tokens")


@pytest.mark.parametrize("symptom", sorted({*POSITIONS, *REFUSED} - {"refused", "none"}))
def test_what_is_no_log_probability_is_a_fault(symptom: str) -> None:
    tested = rounds(Model(symptom))
    assert all(round_.faults and not round_.skipped for round_ in tested.values()), tested


def test_an_answer_with_fewer_log_probabilities_than_tokens_is_a_fault() -> None:
    assert "other tokens" in rounds(Model("short"))[AGAIN].faults[0]


@pytest.mark.parametrize(
    ("argv", "declared"), [((), True), (("--load-format", "dummy"), False), (("--load-format=dummy",), False)]
)
def test_random_weights_that_are_declared_know_no_texts_and_agree_with_themselves(
    argv: tuple[str, ...], declared: bool
) -> None:
    tested = rounds(Model("garbled", text=-8.0), Capabilities.from_argv(argv, {}, random_weights=declared))
    assert tested[KNOWN].skipped == "the weights are random, by the recipe"
    assert tested[AT_ONCE].faults


@pytest.mark.parametrize("argv", [("--kv-sharing-fast-prefill",), ("--logprobs-mode", "raw_logits")])
def test_no_scores_are_requested_of_an_engine_that_they_would_end_or_that_has_none(argv: tuple[str, ...]) -> None:
    model = Model("garbled", text=-8.0)
    tested = rounds(model, Capabilities.from_argv(argv, {}))
    assert all(round_.skipped and not round_.faults for round_ in tested.values())
    assert (len(tested), model.scored) == (3, 0)


def test_a_plan_without_such_flags_is_tested_whole() -> None:
    capabilities = Capabilities.from_argv(
        ("--tool-call-parser", "x", "--reasoning-parser", "y"), {"text_logprob": -2}, 512
    )
    assert capabilities == Capabilities(512, tools=True, reasoning=True, text_logprob=-2.0)
