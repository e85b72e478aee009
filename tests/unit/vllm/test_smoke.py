"""Answers that show broken weights or kernels are found; a random model's and a healthy one's are not."""

import asyncio
import json
import random
import time

import pytest
from msgspec.structs import replace
from tests.unit.engine_server import Reply, engine

from sparkd.base.vllm.answers import find_difference, find_end_fault, find_fault
from sparkd.base.vllm.api import Answer, Endpoint
from sparkd.base.vllm.capabilities import Capabilities
from sparkd.base.vllm.smoke import TOOL, Round, run_rounds, run_short
from sparkd.tools.cli.smoke import render_round

TOKENS = 24
SEA = "Rivers carry minerals into the sea, where they stay while the water leaves."
NINE = " 9, 10, 11, 12, 13, 14,"


def random_bytes(seed: int) -> str:
    """As a model without training over bytes and pieces of words writes."""
    drawn = random.Random(seed)
    pieces = [drawn.choice((bytes([drawn.randrange(256)]), b" th", b"er", b"one")) for _ in range(TOKENS)]
    return b"".join(pieces).decode("utf-8", "replace")


GOOD = (
    SEA,
    "Tea (in Chinese \u8336, in Russian \u0447\u0430\u0439) came to Europe by ship and caravan.",
    "It was very very very very good, ha ha ha ha, and 1000000000000 of them came.",
    "| a | b |\n| --- | --- |\n----------------\n- caf\u00e9, na\u00efve, \u03b1 = 0.333333333333",
    "OK OK",
    " the",
    "x" * 7 + "yz",
)
BAD = (
    ("", "empty"),
    (" \n", "empty"),
    ("!" * TOKENS, "repeats one piece of text: '!!!!"),
    (" the the the the the the", "repeats one piece"),
    ("\ufffd\ufffda\ufffd\ufffdb\ufffd\ufffd", "no text"),
    ("The sea is" + " salty" * 14, "repeats itself"),
    ("Yes. " + "I can help you with that. " * 4, "repeats itself"),
    ("The sea is \u6df1\u4e0d\u53ef\u6d4b\u7684\u6d77\u6d0b\u5145\u6ee1\u4e86\u795e\u79d8", "CJK in the answer"),
    ("\u6d77\u6c34\u4e4b\u6240\u4ee5\u662f\u54b8\u7684\uff0c\u662f\u56e0\u4e3a", "CJK in the answer"),
    ("The sea is \u0441\u043e\u043b\u0451\u043d\u043e\u0435 \u043c\u043e\u0440\u0435", "CYRILLIC in the answer"),
    ("Sure.<|im_end|>\n<|im_start|>user", "markup"),
    ("Hello<\uff5cAssistant\uff5c>there", "markup"),
    ('<tool_call>{"name": "x"}</tool_call>', "markup"),
    ('<invoke name="get_weather"><parameter name="city">', "markup"),
    ("<function=get_weather><parameter=city>", "markup"),
    ('{"type": "function", "function": {"name": "x"}}', "markup"),
    ("[TOOL_CALLS] [{}]", "markup"),
)


@pytest.mark.parametrize("text", GOOD)
def test_a_healthy_answer_has_no_fault(text: str) -> None:
    assert find_fault(Answer(text, "stop", 8), TOKENS, chat=True) == ""


@pytest.mark.parametrize(("text", "fault"), BAD)
def test_a_bad_answer_is_found(text: str, fault: str) -> None:
    assert fault in find_fault(Answer(text, "length", TOKENS), TOKENS, chat=True)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (Answer(SEA, "abort", 3), "ended with 'abort'"),
        (Answer(SEA, "tool_calls", 3), "ended with 'tool_calls'"),
        (Answer(SEA, "length", 9), "cut off: 9 of 24 tokens"),
        (Answer(SEA, "length", 24), ""),
        (Answer(SEA, "length"), ""),
        (Answer(error="no answer within 60 s"), "failed: no answer within 60 s"),
        (Answer("", "length", 24, reasoning=SEA), ""),
        (Answer("", "length", 24, reasoning="!" * 24), "repeats one piece"),
    ],
)
def test_ends_and_reasoning(answer: Answer, fault: str) -> None:
    reason = find_fault(answer, TOKENS, chat=True)
    assert fault in reason if fault else not reason, reason


def test_thinking_is_a_leak_only_where_a_parser_takes_it_out() -> None:
    answer = Answer("<think>So, the sea</think>It is salt.", "stop", 12)
    assert find_fault(answer, TOKENS, chat=True) == ""
    assert "markup" in find_fault(answer, TOKENS, chat=True, thinks=True)


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ((TOOL, '{"city": "Berlin"}'), ""),
        ((TOOL, '{"city": '), "no JSON object"),
        ((TOOL, "[" * 10_000), "no JSON object"),
        (("rm", "{}"), "was not offered: 'rm'"),
    ],
)
def test_a_tool_call_is_of_the_offered_tool_with_json(call: tuple[str, str], fault: str) -> None:
    reason = find_fault(Answer("", "tool_calls", 9, calls=(call,)), TOKENS, chat=True, tool=TOOL)
    assert fault in reason if fault else not reason, reason


def test_of_one_prompt_at_temperature_0_only_the_first_letter_counts() -> None:
    nine = Answer(NINE, "length", 24)
    assert find_difference([nine, replace(nine, text=" 9 and so on")]) == ""
    assert "different answers" in find_difference([nine, replace(nine, text=" !!!!")])
    assert find_difference([nine, Answer(error="refused")]) == ""
    assert find_end_fault(replace(nine, text="aaaaaaaa"), 24) == "", "at temperature 0 small models repeat themselves"


def test_a_random_model_is_no_garbage() -> None:
    for seed in range(2000):
        reason = find_fault(Answer(random_bytes(seed), "length", TOKENS), TOKENS, chat=True)
        assert not reason, (seed, reason)


class Engine:
    """Answers with sense, save the one symptom that it is given."""

    def __init__(self, symptom: str = "") -> None:
        self.symptom, self.plain, self.reads = symptom, 0, 0

    def __call__(self, request: str, _: str) -> Reply:
        usage = {"completion_tokens": 200}
        if request == "GET /v1/models":
            return 200, json.dumps({"data": [{"id": "tiny", "max_model_len": 512}]}).encode()
        if request == "POST /tokenize":
            return 200, json.dumps({"tokens": list(range(5, 60))}).encode()
        if request == "POST /v1/chat/completions":
            if self.symptom in ("400", "404"):
                return int(self.symptom), b'{"error": "no chat template"}'
            text = dict(BY_SYMPTOM).get(self.symptom, SEA)
            finish = "abort" if self.symptom == "abort" else "stop"
            message = {"content": text, "reasoning": "It is about salt." if text else ""}
            return 200, json.dumps(
                {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}
            ).encode()
        self.plain += 1
        if self.symptom == "nan":
            return 500, b"Out of range float values are not JSON compliant"
        odd = {"differs": self.plain % 2 == 0, "once": self.plain == 2}.get(self.symptom, False)
        text = " 7" if odd else NINE
        choice = {"text": text, "finish_reason": "length"}
        return 200, json.dumps({"choices": [choice], "usage": usage}).encode()


BY_SYMPTOM = (
    ("empty", ""),
    ("repeated", "!" * 48),
    ("drift", BAD[8][0]),
    ("template", BAD[10][0]),
    ("tool", BAD[12][0]),
)


def rounds(symptom: str, capabilities: Capabilities) -> list[Round]:
    async def collect(port: int) -> list[Round]:
        return [round_ async for round_ in run_rounds(Endpoint("127.0.0.1", port, "tiny"), capabilities, 5)]

    with engine(Engine(symptom)) as port:
        return asyncio.run(collect(port))


ALL = Capabilities(context_tokens=512, tools=True, reasoning=True)
REFUSED = (  # by vLLM 0.32, of a model such as DiffusionGemma
    '{"error":{"message":"The temperature, min_p, seed, min_tokens, logit_bias, bad_words, and allowed_token_ids '
    'sampling parameters are not yet supported with diffusion models.","type":"BadRequestError"}}'
)


@pytest.mark.parametrize("symptom", ["", "400", "404"])
def test_every_round_of_a_healthy_engine_is_clean(symptom: str) -> None:
    shown = rounds(symptom, ALL)
    assert [round_ for round_ in shown if round_.faults] == []
    assert {"1 at once", "6 at once", "context"} <= {round_.name for round_ in shown}
    assert ({"tool call", "reasoning"} <= {round_.name for round_ in shown}) is not bool(symptom)
    assert shown[-1].note == "504 of 512 tokens in"
    assert all(len(line) <= 80 for round_ in shown for line in render_round(round_))


@pytest.mark.parametrize(
    ("symptom", "text"),
    [
        ("empty", "empty"), ("repeated", "repeats"), ("drift", "CJK"), ("template", "markup"), ("tool", "markup"),
        ("abort", "ended"), ("differs", "different"), ("once", "different"), ("nan", "Out of range"),
    ],
)  # fmt: skip
def test_each_symptom_is_found_by_http(symptom: str, text: str) -> None:
    tested = rounds(symptom, ALL)
    assert any(text in fault for round_ in tested for fault in round_.faults), tested
    assert all(len(line) <= 80 for round_ in tested for line in render_round(round_))


def test_another_context_than_the_plans_is_a_fault() -> None:
    assert rounds("", Capabilities(4096))[-1].faults == ("the engine accepts 512 tokens, the plan has 4,096",)


@pytest.mark.parametrize(
    ("status", "body", "is_skipped"),
    [(404, "Not Found", True), (500, REFUSED, True), (400, "Out of range float", False)],
)
def test_an_engine_that_makes_no_text_or_not_so_is_not_tested(status: int, body: str, *, is_skipped: bool) -> None:
    with engine(lambda *_: (status, body.encode())) as port:
        (tested,) = asyncio.run(run_short(Endpoint("127.0.0.1", port, "tiny"), Capabilities(), 5, step_seconds=0.01))
    assert (bool(tested.faults), f"HTTP {status} {body[:9]}" in tested.skipped) == (not is_skipped, is_skipped)


def test_what_answers_nothing_is_not_tested_on() -> None:
    assert len(rounds("nan", ALL)) == 1


@pytest.mark.parametrize(
    ("symptom", "fault"), [("", ""), ("once", ""), ("differs", "different answers"), ("nan", "HTTP 500 Out of")]
)
def test_the_short_form_is_of_completions_and_finds_what_lasts(symptom: str, fault: str) -> None:
    with engine(Engine(symptom)) as port:
        tested = asyncio.run(run_short(Endpoint("127.0.0.1", port, "tiny"), Capabilities(), 5, step_seconds=0.01))
    faults = [fault for round_ in tested for fault in round_.faults]
    assert fault in faults[0] if fault else not faults, faults


class BusyEngine(Engine):
    """Answers from the completion `late_at` on too late. It has `requests`, and works on them unless it `hangs`."""

    def __init__(self, late_at: int, requests: int, *, hangs: bool = False, symptom: str = "") -> None:
        super().__init__(symptom)
        self.late_at, self.requests, self.hangs = late_at, requests, hangs
        self.steps = 0

    def __call__(self, request: str, authorization: str) -> Reply:
        if request == "GET /metrics":
            self.steps += not self.hangs
            counters = {"num_requests_running": 0, "num_requests_waiting": self.requests, "prompt_tokens_total": 1}
            counters |= {"generation_tokens_total": self.steps, "iteration_tokens_total_count": self.steps}
            return 200, "".join(f"vllm:{name} {value}\n" for name, value in counters.items()).encode()
        reply = super().__call__(request, authorization)
        if self.plain >= self.late_at:
            time.sleep(2 * LATE_SECONDS)
        return reply


LATE_SECONDS = 0.4


def run_short_form(reply: Engine) -> list[Round]:
    async def run(port: int) -> list[Round]:
        return await run_short(Endpoint("127.0.0.1", port, "tiny"), Capabilities(), LATE_SECONDS, step_seconds=0.01)

    with engine(reply) as port:
        return asyncio.run(run(port))


@pytest.mark.parametrize("late_at", [1, 2, 3])
def test_a_late_answer_of_an_engine_that_works_for_clients_is_no_fault(late_at: int) -> None:
    *_, last = run_short_form(BusyEngine(late_at, 23))
    assert last.faults == ()
    assert last.skipped == "no answer within 0.4 s beside 23 of clients' requests"


@pytest.mark.parametrize(
    "busy", [BusyEngine(1, 23, hangs=True), BusyEngine(1, 0)], ids=["it hangs", "it has nothing else to do"]
)
def test_a_late_answer_is_a_fault_else(busy: Engine) -> None:
    assert run_short_form(busy)[0].faults[0] == "a completion failed: no answer within 0.4 s"


@pytest.mark.parametrize("late_at", [3, 23], ids=["at the first try", "at the second"])
def test_a_wrong_answer_counts_where_it_can_not_be_tried_once_more(late_at: int) -> None:
    rounds = run_short_form(BusyEngine(late_at, 23, symptom="differs"))
    assert "different answers" in rounds[0].faults[0]
