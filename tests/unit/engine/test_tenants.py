"""Who is said to have taken the memory that a killed engine should have had."""

import pytest

from sparkd.agent.engine.memory_guard.tenants import Tenants, describe_growth
from sparkd.base.lib.text import GIB

LAUNCH = Tenants(10 * GIB, charged_bytes=GIB)


@pytest.mark.parametrize(
    ("at_end", "by_others"),
    [
        pytest.param(Tenants(10 * GIB, charged_bytes=GIB), False, id="nobody"),
        pytest.param(Tenants(19 * GIB, charged_bytes=GIB), True, id="processes"),
        pytest.param(Tenants(10 * GIB, charged_bytes=9 * GIB), True, id="a user's sockets, though nobody is named"),
        pytest.param(Tenants(10 * GIB), False, id="what groups are charged for is unknown"),
        pytest.param(
            Tenants(10 * GIB, gpu_bytes=9 * GIB, charged_bytes=GIB), False, id="the GPU's, of nobody that is named"
        ),
    ],
)
def test_growth_counts_as_others_only_where_both_ends_know_it(at_end: Tenants, by_others: bool) -> None:
    assert describe_growth(LAUNCH, at_end, spare_bytes=2 * GIB).by_others is by_others
