"""Plan agreement: every shared value counts, order never does, a secret never shows, and what differs is said."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.test_plan import HEAD, WORKER, configured, plan

from sparkd.errors import BlockedError
from sparkd.flags import JsonValue
from sparkd.host import Host
from sparkd.host.weights import Weights
from sparkd.launch import agreement, shared, survey
from sparkd.launch.agreement import Agreement, Difference, Seen
from sparkd.launch.plan import LaunchPlan

SEEN = Seen("i" * 64, Weights((("model.safetensors", "5 bytes"),)), "")
TEXTS = st.text(max_size=40)
VALUES = st.dictionaries(TEXTS, TEXTS, max_size=12)


def agreed(made: LaunchPlan | None = None, seen: Seen = SEEN) -> Agreement:
    return agreement.agreement(made or plan(HEAD), seen)


@given(values=VALUES.filter(bool), data=st.data())
def test_any_change_of_one_value_changes_the_digest(values: dict[str, str], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(values)))
    other = data.draw(TEXTS.filter(lambda text: text != values[name]))
    assert shared.digest({**values, name: other}.items()) != shared.digest(values.items())
    rest = {key: value for key, value in values.items() if key != name}
    assert shared.digest(rest.items()) != shared.digest(values.items())


@given(values=VALUES, data=st.data())
def test_order_never_matters(values: dict[str, str], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(sorted(values.items())))
    assert shared.digest(shuffled) == shared.digest(values.items())
    assert agreement.dump(dict(shuffled)) == agreement.dump(values)


@given(values=VALUES)
def test_what_is_written_is_read_back(values: dict[str, str]) -> None:
    assert agreement.parse(agreement.dump(values)) == values


@given(values=st.dictionaries(st.text(), st.text(), max_size=5))
def test_values_of_a_plan_always_fit_the_wire(values: dict[str, str]) -> None:
    flat = dict(shared.flat({}, {"env": {name * 200: text * 500 for name, text in values.items()}}))
    assert agreement.parse(agreement.dump(flat)) == flat


@given(data=st.binary(max_size=200))
def test_anything_else_than_texts_by_name_is_not_read(data: bytes) -> None:
    found = agreement.parse(data)
    assert found is None or found == json.loads(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"a":1}',
        b'{"a":null}',
        b'{"a":"b"',
        b"\xff",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        json.dumps({"a": "b" * 4097}).encode(),
        json.dumps({"a" * 4097: "b"}).encode(),
        json.dumps({str(number): "" for number in range(20_001)}).encode(),
        b'{"a":"' + b" " * (8 << 20) + b'"}',
    ],
    ids=lambda data: data[:12].decode(errors="replace"),
)
def test_what_is_out_of_bounds_is_not_read(data: bytes) -> None:
    assert agreement.parse(data) is None


@given(own=VALUES, theirs=VALUES, names=st.tuples(TEXTS, TEXTS))
def test_what_differs_is_said_in_lines_that_move_no_cursor(
    own: dict[str, str], theirs: dict[str, str], names: tuple[str, str]
) -> None:
    found = agreement.differences(own, theirs)
    assert bool(found) == (own != theirs)
    lines = (*agreement.table(found, *names), agreement.summary(found), *agreement.warnings(own, theirs))
    assert all(line.isprintable() and len(line) < 250 for line in lines)


@given(before=st.text("ab", max_size=4000), tails=st.lists(st.text("cd", max_size=4000), min_size=2, max_size=2))
def test_the_part_that_differs_is_in_sight(before: str, tails: list[str]) -> None:
    one = Difference("args.x", before + "c" + tails[0], before + "d" + tails[1])
    _, row = agreement.table((one,), "a", "b")
    own, theirs = row.removeprefix("args.x").split()
    assert own != theirs
    assert max(len(own), len(theirs)) <= agreement.VALUE_WIDTH


def test_the_table_is_aligned_and_names_both_nodes() -> None:
    found = agreement.differences(
        {"args.max-model-len": "512", "env.A": "1", "env.B": ""}, {"args.max-model-len": "256", "env.B": "\x1b[2J"}
    )
    assert agreement.table(found, "spark-1", "spark-2") == (
        "                    spark-1  spark-2",
        "args.max-model-len  512      256",
        "env.A               1        -",
        'env.B               ""       \\x1b[2J',
    )
    assert agreement.summary(found) == "args.max-model-len is 512 here and 256 there; and 2 more"
    assert agreement.summary(found[1:2]) == "env.A is 1 here and not set there"
    assert (agreement.table((), "a", "b"), agreement.summary(())) == ((), "")


def test_a_long_table_ends_with_a_count() -> None:
    lines = agreement.table([Difference(f"args.{number}", "a", "b") for number in range(100)], "a", "b")
    assert (len(lines), lines[-1]) == (42, "and 60 more")


def test_both_ranks_agree_and_each_look_counts() -> None:
    assert agreed(plan(WORKER)) == agreed(plan(HEAD))
    assert agreed().values["weights.model.safetensors"] == "5 bytes"
    looks = [
        SEEN,
        replace(SEEN, image_identity="j"),
        replace(SEEN, weights=Weights(())),
        replace(SEEN, weights=Weights((("model.safetensors", "missing"),))),
        replace(SEEN, script_sha256="s"),
        replace(SEEN, allow_image_difference=True),
    ]
    assert len({agreed(seen=look).digest for look in looks}) == len(looks)


def test_an_image_that_may_differ_stays_in_the_table_and_out_of_the_digest() -> None:
    allowed = replace(SEEN, allow_image_difference=True)
    own = agreed(seen=allowed)
    theirs = agreed(plan(HEAD, configured(engine={"image": "i:2"})), replace(allowed, image_identity="j"))
    assert own.digest == theirs.digest
    found = agreement.differences(own.values, theirs.values)
    assert [(one.name, one.allowed) for one in found] == [
        ("unchecked.image", True),
        ("unchecked.image.identity", True),
    ]
    other = agreement.differences({**own.values, "weights.x": "1"}, theirs.values)
    assert other[0].name == "weights.x", "what blocks stands first"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("NCCL_DEBUG", "INFO", "INFO"),
        ("MY_KEY", "hunter2", shared.HIDDEN),
        ("hf_tokens", "hunter2", shared.HIDDEN),
        ("DbPassword", "1234", shared.HIDDEN),
        ("some_secret", 1234, shared.HIDDEN),
        ("proxy", "http://me:hunter2@proxy:3128", shared.HIDDEN),
        ("kv", {"token": "hunter2", "tokens": 5, "in": [{"api_key": "x"}]}, {"in": [{"api_key": 0}], "tokens": 5}),
        ("kv", ' {"token": "hunter2"}', {"token": 0}),
        ("max-num-batched-tokens", 16384, "16384"),
        ("max-num-batched-tokens", "16384", "16384"),
        ("tokenizer-mode", "auto", "auto"),
        ("use-keys", True, "true"),
    ],
)
def test_a_secret_is_told_by_name_alone(name: str, value: JsonValue, said: JsonValue) -> None:
    text = shared.text(name, value)
    assert "hunter2" not in text
    assert "1234" not in text
    if isinstance(said, str):
        assert text == said
    else:
        assert set(json.loads(text)) >= set(json.loads(json.dumps(said)))


def test_secrets_change_no_digest() -> None:
    def with_key(value: str) -> Mapping[str, str]:
        return dict(plan(HEAD, env={"MY_CLOUD_KEY": value}, secrets={"VLLM_API_KEY": f"/etc/{value}"}).shared)

    assert with_key("a") == with_key("b")
    assert with_key("a")["secrets.VLLM_API_KEY"] == with_key("a")["env.MY_CLOUD_KEY"] == shared.HIDDEN


@pytest.mark.parametrize(
    ("one", "other"), [(True, "true"), (["a"], '["a"]'), ("", None), ("a", '"a"'), (["a", "b"], ["b", "a"])]
)
def test_values_that_make_other_words_read_differently(one: JsonValue, other: JsonValue) -> None:
    assert shared.flat({}, {"args": {"x": one}}) != shared.flat({}, {"args": {"x": other}})


def test_versions_are_compared_where_both_are_known() -> None:
    own = {"driver": "580.1", "kernel": "6.17", "sparkd": "1"}
    assert agreement.warnings(own, {"driver": "570\n", "kernel": "6.17", "docker": "29"}) == (
        "driver is 580.1 here and 570\\n there",
    )


def test_the_look_reads_model_and_script(tree: Tree) -> None:
    made = plan(HEAD, configured(engine={"script": "/etc/sparkd/run.sh"}))
    tree.file("/etc/sparkd/run.sh", "exec $@")
    tree.file("/srv/models/m/model.safetensors", "12345")
    host = Host(tree.root)
    assert survey.model(host, made).files == (("model.safetensors", "5 bytes"),)
    assert len(survey.script(host, made)) == 64
    assert survey.script(host, plan(HEAD)) == ""


def test_a_look_that_fails_says_at_what(tree: Tree) -> None:
    host = Host(tree.root)
    with pytest.raises(BlockedError, match="/srv/models/m can't be read: No such file"):
        survey.model(host, plan(HEAD))
    with pytest.raises(BlockedError, match=r"engine.script /x.sh can't be read"):
        survey.script(host, plan(HEAD, configured(engine={"script": "/x.sh"})))
