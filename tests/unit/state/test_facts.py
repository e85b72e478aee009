"""The facts of two starts differ by what they mean, likeliest cause first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.plans import HEAD, plan

from sparkd.base.plan.differences import VALUE_WIDTH, Difference
from sparkd.base.state.facts import READ_FROM_NODE, Facts, excerpt_values, find_differences, group_files, node_values

TEXTS = st.text(max_size=30)
TABLES = st.dictionaries(TEXTS, TEXTS, max_size=8)


def with_values(values: dict[str, str]) -> Facts:
    return Facts(values, {}, {})


@pytest.mark.parametrize(
    ("earlier", "current"),
    [
        ({"args.max-model-len": "128K"}, {"args.max-model-len": "131072"}),
        ({"args.gpu-memory-utilization": "0.90"}, {"args.gpu-memory-utilization": "0.9"}),
        ({"args.no-enable-x": "true"}, {"args.enable-x": "false"}),
        ({"args.c": '{"a":1,"b":2}'}, {"args.c": '{"b": 2, "a": 1}'}),
        ({"unchecked.image": "i:1"}, {"image": "i:1"}),
        ({"args.x": "nan"}, {"args.x": "nan"}),
    ],
)
def test_values_that_mean_the_same_do_not_differ(earlier: dict[str, str], current: dict[str, str]) -> None:
    assert find_differences(with_values(earlier), with_values(current)) == ()


@pytest.mark.parametrize(
    ("earlier", "current", "difference"),
    [
        ({"args.no-x": "true"}, {"args.x": "true"}, Difference("args.x", "false", "true")),
        ({"args.dtype": "float32"}, {"args.dtype": "half"}, Difference("args.dtype", "float32", "half")),
        ({}, {"args.seed": "1"}, Difference("args.seed", "", "1")),
        ({"env.A": ""}, {}, Difference("env.A", '""', "")),
    ],
)
def test_a_difference_has_both_texts(earlier: dict[str, str], current: dict[str, str], difference: Difference) -> None:
    assert find_differences(with_values(earlier), with_values(current)) == (difference,)


def test_the_difference_that_most_likely_matters_comes_first() -> None:
    names = (
        "args.dtype", "env.A", "image", "recipe", "image.identity", "weights.a", "script.sha256", "container.ipc",
        "caches.vllm", "node.model_folder", "cluster.size", "driver", "kernel", "docker", "sparkd", "boot.memory",
        "sysctl.vm.swappiness", "something.new",
    )  # fmt: skip
    versions, boot = ("driver", "kernel", "docker", "sparkd"), ("boot.memory", "sysctl.vm.swappiness")
    values = [name for name in reversed(names) if name not in (*versions, *boot)]

    def all_are(text: str) -> Facts:
        return Facts(dict.fromkeys(values, text), dict.fromkeys(versions, text), dict.fromkeys(boot, text))

    assert [difference.name for difference in find_differences(all_are("1"), all_are("2"))] == list(names)


def test_values_that_were_not_read_do_not_differ() -> None:
    earlier = with_values({"image.identity": "i", "weights.a": "1", "script.sha256": "s", "args.x": "1"})
    current = Facts({"args.x": "2"}, {}, {}, unseen=dict.fromkeys(READ_FROM_NODE, "docker is away"))
    assert find_differences(earlier, current) == (Difference("args.x", "1", "2"),)


def test_versions_and_facts_of_the_boot_differ_where_both_are_known() -> None:
    earlier = Facts({}, {"driver": "580", "docker": "29"}, {"boot.swap": "off", "sysctl.vm.swappiness": "10"})
    current = Facts({}, {"driver": "590", "kernel": "6.17"}, {"boot.swap": "on"})
    assert find_differences(earlier, current) == (
        Difference("driver", "580", "590"),
        Difference("boot.swap", "off", "on"),
    )


def test_many_files_of_weights_are_one_line_at_the_place_of_the_first() -> None:
    def file(number: int) -> Difference:
        return Difference(f"weights.model-{number}", "5 bytes", "6 bytes")

    before, after = Difference("args.a", "1", "2"), Difference("driver", "1", "2")
    lines = group_files([before, *map(file, range(9)), after])
    text = "9 files differ: model-0, model-1, model-2 and 6 more"
    assert lines == (before, Difference("weights", "as they were", text), after)
    few = (file(0), file(1))
    assert group_files(few) == few


@given(earlier=TABLES, current=TABLES)
def test_every_difference_is_shown_in_short_lines(earlier: dict[str, str], current: dict[str, str]) -> None:
    for difference in group_files(find_differences(with_values(earlier), with_values(current))):
        assert all(text.isprintable() and 0 < len(text) <= VALUE_WIDTH for text in excerpt_values(difference))


@given(values=TABLES)
def test_no_facts_differ_from_themselves(values: dict[str, str]) -> None:
    assert find_differences(with_values(values), with_values(values)) == ()


def test_values_of_the_node_itself_are_known() -> None:
    assert node_values(plan(HEAD)) == {
        "node.model_folder": "/srv/models/m",
        "node.interface": "bond0",
        "node.hcas": "rocep1s0f0,roceP2p1s0f0",
    }
