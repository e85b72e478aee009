"""A file server that hangs while the engine serves: nothing ends, and the service continues once it is unmounted."""

import shutil
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import pytest
from tests.integration.agent_world import World, configuration, world
from tests.integration.side_by_side import Outcomes, outcomes
from tests.unit.nodes import KEY, until

from sparkd.base.lib.errors import ExitCode

SHARE = "/srv/share"
FED_SECONDS = 10.0
"""The longest time without WATCHDOG=1, a third of the unit's."""
AFTER_SECONDS = 6.0
"""Longer than the pause between two probes of a serving engine."""
STOP_SECONDS = 60.0
RECIPE = """\
schema: 1
name: shared{suffix}
description: The tiny model, as a file of a share
extends: tiny-cpu{suffix}
"""


class Hang(NamedTuple):
    phases: list[str]
    """In the reports, while the share hung and after it."""
    longest_unfed_seconds: float
    code: int | None
    """After SIGTERM; None where the run had ended before."""


@pytest.fixture(scope="module")
def hangs(request: pytest.FixtureRequest) -> Iterator[Outcomes[Hang]]:
    with outcomes(request, serve_from_share, at_once=4) as results:
        yield results


def serve_from_share(pair: bool, hang_seconds: float) -> Hang:
    with world(pair=pair) as node:
        share(node, pair=pair)
        node.start_agent()
        if pair:
            node.lead_peer()
        node.await_phase("serving")
        phases: list[str] = []
        with node.hurried():
            with node.hung(SHARE):
                watch(node, hang_seconds, phases)
            watch(node, AFTER_SECONDS, phases)
        fed = [*node.systemd.times_of("WATCHDOG=1"), time.monotonic()]
        longest = max(later - earlier for earlier, later in pairwise(fed))
        ended = node.agent is None or node.agent.poll() is not None
        if not ended:
            node.terminate()
        return Hang(phases, round(longest, 1), None if ended else node.exit_code(STOP_SECONDS))


def share(node: World, *, pair: bool) -> None:
    """The model, the recipe and the key lie on a share."""
    suffix = "-pair" if pair else ""
    node.tree.file(f"{SHARE}/shared.yaml", RECIPE.format(suffix=suffix))
    node.tree.file(f"{SHARE}/cluster.key", f"{KEY.hex()}\n", 0o600)
    node.tree.safetensors(f"{SHARE}/models/tiny/model.safetensors")
    text = configuration(
        f'engine.models_dir = "{SHARE}/models"',
        f'cluster.key_file = "{SHARE}/cluster.key"',
        recipe=f"{SHARE}/shared.yaml",
        pair=pair,
    )
    node.tree.file("/etc/sparkd/sparkd.toml", text)
    shutil.rmtree(node.root / "srv/models")


def watch(node: World, seconds: float, phases: list[str]) -> None:
    """Note each change of the reported phase."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        phase = str(node.report.get("phase"))
        if phases[-1:] != [phase]:
            phases.append(phase)
        time.sleep(0.1)


ROWS = [
    pytest.param(False, 15, id="alone"),
    pytest.param(True, 15, id="pair"),
    pytest.param(False, 60, id="alone-long", marks=pytest.mark.whole),
    pytest.param(True, 60, id="pair-long", marks=pytest.mark.whole),
]


@pytest.mark.parametrize(("pair", "hang_seconds"), ROWS)
def test_nothing_ends_and_the_service_continues(
    pair: bool, hang_seconds: float, hangs: Outcomes[Hang], request: pytest.FixtureRequest
) -> None:
    hang = hangs.of(request)
    assert (hang.phases, hang.code) == (["serving"], 0)
    assert hang.longest_unfed_seconds < FED_SECONDS


def test_a_start_while_the_disk_of_the_state_hangs_ends_with_what_to_look_at() -> None:
    with world() as node:
        node.tree.folder("/var/lib/sparkd")
        with node.hung("/var/lib/sparkd"):
            node.start_agent()
            assert node.exit_code(STOP_SECONDS) == ExitCode.BLOCKED
        until(lambda: any("what holds /var/lib/sparkd" in line for line in node.lines), 5)


def test_a_start_while_the_share_of_the_key_hangs_ends_with_what_to_look_at() -> None:
    key = f"{SHARE}/cluster.key"
    with world(f'cluster.key_file = "{key}"', pair=True) as node:
        node.tree.file(key, f"{KEY.hex()}\n", 0o600)
        with node.hung(SHARE):
            node.start_agent()
            assert node.exit_code(STOP_SECONDS) == ExitCode.BLOCKED
        until(lambda: any(f"what holds {key}" in line for line in node.lines), 5)


def test_a_start_while_the_share_of_the_observers_token_hangs_serves_clients() -> None:
    with world() as node:
        observe = f'observe.listen = "127.0.0.1:29511"\nobserve.token_file = "{SHARE}/token"\n'
        node.tree.file("/etc/sparkd/conf.d/20-observe.toml", observe)
        node.tree.file(f"{SHARE}/token", "0123456789abcdef" * 2, 0o600)
        with node.hung(SHARE):
            node.start_agent()
            node.await_phase("serving")
