"""What an agent keeps of its rank for the next one."""

from msgspec.structs import replace

from sparkd.agent.cluster.monitor import ExpectedPeer
from sparkd.agent.daemon.kept_rank import KeptRank, without_mounts_and_asserts
from sparkd.base.cluster.membership import make_context, node_of_rank
from sparkd.base.config import Engine, Settings
from sparkd.base.host import Host
from sparkd.base.plan.agreement import Agreement


def kept_rank(recipe: str = "tiny-cpu", nodes: tuple[str, ...] = (), rank: int = 0) -> KeptRank:
    settings = Settings().model_copy(update={"engine": Engine(recipe=recipe)})
    if nodes:
        settings = settings.model_copy(update={"cluster": settings.cluster.model_copy(update={"nodes": nodes})})
    place = replace(node_of_rank(settings, rank), interface="eth0", hcas=("a", "b"))
    context = make_context(settings, Host(), place=place)
    return KeptRank(
        rank_id="rank",
        name="sparkd-rank0",
        image_id="sha256:i",
        plan=without_mounts_and_asserts(context.plan),
        settings=context.settings,
        configured=context.configured,
        recipe=context.recipe,
        agreement=Agreement({"image": "i"}, "d" * 64),
        peers=(ExpectedPeer(1, "launch", "e"),),
        stamp="stamp",
        service="unit",
        sources=frozenset({"1(EngineCore pid=9) "}),
        secrets={"VLLM_API_KEY": "k"},
    )
