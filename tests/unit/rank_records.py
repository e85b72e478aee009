"""Records of ranks."""

from msgspec.structs import replace

from sparkd.base.state.rank_record import RankRecord


def rank_record(**changes: object) -> RankRecord:
    """Of a rank whose container is not created yet, changed in some fields."""
    return replace(RankRecord("rank", "agent", "boot", "plan", "epoch", "rdma"), **changes)
