"""Names by LLDP, from lldpcli's json0: what a stranger wrote into a frame."""

import json

import pytest

from sparkd.tools.node.fabric_ports import MOST_NAMES, parse_names


def answer(*machines: tuple[str, str]) -> bytes:
    """As lldpcli 1.0.16 prints it, shortened."""
    interfaces = [
        {
            "name": name,
            "via": "LLDP",
            "chassis": [{"id": [{"type": "mac", "value": "3c:6d:66:00:00:01"}], "name": [{"value": machine}]}],
            "port": [{"id": [{"type": "ifname", "value": "swp1"}]}],
        }
        for name, machine in machines
    ]
    return json.dumps({"lldp": [{"interface": interfaces}]}).encode()


def test_names_are_by_interface() -> None:
    names = parse_names(answer(("enp1s0f0np0", "spark2"), ("enp1s0f0np0", "spark3"), ("eth0", "switch")))
    assert names == {"enp1s0f0np0": ("spark2", "spark3"), "eth0": ("switch",)}


@pytest.mark.parametrize(
    "text",
    [
        b'{"lldp":[{}]}',
        b'{"lldp":[{"interface":[{"name":"eth0","chassis":[{}]}]}]}',
        b"[]",
        b'{"lldp": 3}',
        b'{"lldp":[{"interface":[{"chassis":[{"name":3}]}, 7]}]}',
    ],
)
def test_no_neighbour_one_without_a_name_and_another_form_are_nothing(text: bytes) -> None:
    assert parse_names(text) == {}


def test_a_name_is_one_short_line_and_there_are_not_many() -> None:
    names = parse_names(answer(*[("eth0", f"a\x1b[2J\n{'x' * 500}")] * 100))
    assert len(names["eth0"]) == MOST_NAMES
    assert all(len(name) == 64 and name.isprintable() for name in names["eth0"])


def test_no_json_is_an_error() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        parse_names(b"")
