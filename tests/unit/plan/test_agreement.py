"""Plan agreement: every shared value counts, order does not, secrets stay hidden."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.plans import HEAD, configured, plan

from sparkd.base.host.weights import Manifest
from sparkd.base.plan import agreement
from sparkd.base.plan.agreement import Agreement
from sparkd.base.plan.differences import compare_values
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.vllm.args import JsonValue

WEIGHTS = (("model.safetensors", "5 bytes"),)
TEXTS = st.text(max_size=40)
VALUES = st.dictionaries(TEXTS, TEXTS, max_size=12)


def agreed(
    launch_plan: LaunchPlan | None = None,
    image: str = "i" * 64,
    weights: Manifest = WEIGHTS,
    script: str = "",
    allow_image_difference: bool = False,
) -> Agreement:
    return agreement.make_agreement(launch_plan or plan(HEAD), image, weights, script, allow_image_difference)


@given(values=VALUES.filter(bool), data=st.data())
def test_any_change_of_one_value_changes_the_digest(values: dict[str, str], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(values)))
    other = data.draw(TEXTS.filter(lambda text: text != values[name]))
    assert agreement.compute_digest({**values, name: other}.items()) != agreement.compute_digest(values.items())
    rest = {key: value for key, value in values.items() if key != name}
    assert agreement.compute_digest(rest.items()) != agreement.compute_digest(values.items())


@given(values=VALUES, data=st.data())
def test_order_never_matters(values: dict[str, str], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(sorted(values.items())))
    assert agreement.compute_digest(shuffled) == agreement.compute_digest(values.items())
    assert agreement.dump_values(dict(shuffled)) == agreement.dump_values(values)


@given(values=st.dictionaries(st.text(), st.text(), max_size=5))
def test_values_of_a_plan_always_fit_the_wire(values: dict[str, str]) -> None:
    flat = dict(agreement.flatten({}, {"env": {name * 200: text * 500 for name, text in values.items()}}))
    assert agreement.parse_values(agreement.dump_values(flat)) == flat


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"a":1}',
        b'{"a":null}',
        b'{"a":[]}',
        b'{"a":"b"',
        b"\xff",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        json.dumps({"a": "b" * 4097}).encode(),
        json.dumps({"a" * 4097: "b"}).encode(),
        json.dumps({str(number): "" for number in range(20_001)}).encode(),
        b"{}" + b" " * (8 << 20),
    ],
    ids=lambda data: data[:12].decode(errors="replace"),
)
def test_values_out_of_bounds_are_refused(data: bytes) -> None:
    assert agreement.parse_values(data) is None


def test_each_file_of_weights_is_a_value() -> None:
    assert agreed(weights=WEIGHTS).values["weights.model.safetensors"] == "5 bytes"


def test_agreements_that_differ_in_one_reading_have_different_digests() -> None:
    variants = [
        agreed(),
        agreed(image="j"),
        agreed(weights=()),
        agreed(weights=(("model.safetensors", "missing"),)),
        agreed(script="s"),
        agreed(allow_image_difference=True),
    ]
    assert len({variant.digest for variant in variants}) == len(variants)


def test_an_image_that_may_differ_stays_in_the_table_and_out_of_the_digest() -> None:
    own = agreed(allow_image_difference=True)
    theirs = agreed(plan(HEAD, configured(engine={"image": "i:2"})), image="j", allow_image_difference=True)
    assert own.digest == theirs.digest
    differences = compare_values(own.values, theirs.values)
    assert all(difference.allowed for difference in differences)
    assert [difference.name for difference in differences] == ["unchecked.image", "unchecked.image.identity"]


def test_differences_that_block_come_before_those_that_are_allowed() -> None:
    own = agreed(image="i", weights=(("x", "1"),), allow_image_difference=True)
    theirs = agreed(image="j", weights=(), allow_image_difference=True)
    is_allowed = [(value.name, value.allowed) for value in compare_values(own.values, theirs.values)]
    assert is_allowed == [("weights.x", False), ("unchecked.image.identity", True)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MY_KEY", "hunter2"),
        ("hf_tokens", "hunter2"),
        ("DbPassword", "1234"),
        ("some_secret", 1234),
        ("proxy", "http://me:hunter2@proxy:3128"),
        ("extra", "--port 1 --api-key=hunter2"),
        ("extra", "login hf_AbCdEfGhIjKlMnOpQr"),
    ],
)
def test_of_a_secret_only_the_name_is_shown(name: str, value: JsonValue) -> None:
    assert agreement.format_value(name, value) == agreement.HIDDEN


def test_of_a_mapping_also_as_a_text_only_secrets_are_hidden() -> None:
    mapping: JsonValue = {"token": "hunter2", "tokens": 5, "in": [{"api_key": "x"}]}
    shown = {"token": agreement.HIDDEN, "tokens": 5, "in": [{"api_key": agreement.HIDDEN}]}
    for value in (mapping, f" {json.dumps(mapping)}"):
        assert json.loads(agreement.format_value("kv", value)) == shown


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("NCCL_DEBUG", "INFO", "INFO"),
        ("max-num-batched-tokens", 16384, "16384"),
        ("max-num-batched-tokens", "16384", "16384"),
        ("tokenizer-mode", "auto", "auto"),
        ("use-keys", True, "true"),
    ],
)
def test_what_only_resembles_a_secret_is_shown(name: str, value: JsonValue, shown: str) -> None:
    assert agreement.format_value(name, value) == shown


def test_secrets_change_no_digest() -> None:
    def with_key(value: str) -> Mapping[str, str]:
        return dict(plan(HEAD, env={"MY_CLOUD_KEY": value}, secrets={"VLLM_API_KEY": f"/etc/{value}"}).shared)

    assert with_key("a") == with_key("b")
    assert with_key("a")["secrets.VLLM_API_KEY"] == with_key("a")["env.MY_CLOUD_KEY"] == agreement.HIDDEN


@pytest.mark.parametrize(
    ("value", "other"), [(True, "true"), (["a"], '["a"]'), ("", None), ("a", '"a"'), (["a", "b"], ["b", "a"])]
)
def test_arguments_that_differ_on_the_command_line_differ_in_the_plan(value: JsonValue, other: JsonValue) -> None:
    assert agreement.flatten({}, {"args": {"x": value}}) != agreement.flatten({}, {"args": {"x": other}})
