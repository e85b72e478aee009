"""Builds the plan of a rank from recipe, settings and node. Does no I/O."""

from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from msgspec import Struct
from msgspec.structs import replace

from sparkd.base.config import Settings
from sparkd.base.lib.errors import ConfigError
from sparkd.base.plan import agreement, script
from sparkd.base.plan.model import PLAN_SCHEMA, Cache, LaunchPlan, Node, Secret, pull_command
from sparkd.base.plan.placeholders import Filler, list_values
from sparkd.base.plan.ports import api_port
from sparkd.base.recipes.additions import HCAS, RAY, VERBS, added_env
from sparkd.base.recipes.schema import KV_CACHE_TOKENS, Container, Recipe, Volume
from sparkd.base.vllm.args import JsonValue, command_line
from sparkd.base.vllm.command import API_SERVER
from sparkd.base.vllm.container_paths import kept_caches
from sparkd.base.vllm.flag_values import api_host, check_ranks, gpu_memory_share

POOL_SIZE_FLAGS = frozenset(
    ("block-size", "gpu-memory-utilization", "hf-overrides", "kv-cache-dtype", "kv-cache-memory-bytes",
     "max-num-batched-tokens", "num-gpu-blocks-override", "quantization", "speculative-config")
)  # fmt: skip
"""Flags that change the size of the KV cache."""
BY_TCP = {"NCCL_IB_DISABLE": "1"}
"""Makes NCCL use TCP."""


class _Engine(Struct, frozen=True):
    """The recipe merged with the settings; texts still contain placeholders."""

    image: str
    args: Mapping[str, JsonValue]
    env: Mapping[str, str]
    secrets: tuple[Secret, ...]
    model_path: str
    """Path on the node."""
    model_target: str
    """Path in the container."""
    served_name: str
    container: Container
    caches: Mapping[str, str]


def make_plan(recipe: Recipe, settings: Settings, node: Node, *, by_tcp: bool = False) -> LaunchPlan:
    """The plan of `node`'s rank; `by_tcp`: without RDMA, under the same digest.

    Raises ConfigError if recipe, settings and node contradict each other, AwaitedError where the fabric is missing.
    """
    _check_node_count(recipe, node)
    on_ray = _uses_ray(recipe, settings, node)
    engine = _configure_engine(recipe, settings, node.cluster_size)
    shared = _collect_shared(recipe, settings, node, engine)
    engine = _fit_env(engine, node, by_tcp=by_tcp)
    filler, name = Filler(list_values(node, engine.model_target)), f"recipe {recipe.name}"
    args = {
        flag: filler.fill_value(value, f"{name}: args.{flag}")
        for flag, value in engine.args.items()
        if node.is_head or flag != "api-server-count"  # vLLM refuses it beside --headless
    }
    env = tuple((key, filler.fill_text(text, f"{name}: env.{key}")) for key, text in engine.env.items())
    host, port = api_host(recipe.name, args.get("host")), api_port(recipe.name, args, dict(env), settings)
    share = gpu_memory_share(recipe.name, args.get("gpu-memory-utilization"))
    gpus = recipe.nodes.gpus if recipe.container.gpus == "all" else 0
    check_ranks(recipe.name, args, node.cluster_size, gpus)  # last: the faults above hold for any number of ranks
    entrypoint = recipe.image.entrypoint
    command = (
        *entrypoint,
        # As a module, vLLM's server ignores a model without this flag, and serves its default one.
        *(("--model",) if any(API_SERVER in word for word in entrypoint) and entrypoint[-1] != "--model" else ()),
        engine.model_target,
        "--served-model-name",
        engine.served_name,
        *recipe.model.aliases,
        *command_line(args),
        *_make_rank_flags(node, settings.cluster.master_port, on_ray=on_ray),
    )
    user_script = settings.engine.script
    argv = ("bash", script.USER_SCRIPT_TARGET, *command) if user_script else command
    secrets = tuple(secret for secret in engine.secrets if secret.file)
    lines = script.exec_lines(argv)
    if on_ray:
        lines = script.ray_lines(node, gpus or 1, settings.cluster.master_port, engine.env, lines)
    title = f"rank {node.rank} of {recipe.name}"
    return LaunchPlan(
        recipe=recipe.name,
        role=node.role,
        node=node,
        image=engine.image,
        entrypoint=entrypoint,
        argv=argv,
        env=env,
        secrets=secrets,
        container=engine.container,
        caches=tuple(Cache(name, target) for name, target in engine.caches.items()),
        script=script.render_script(title, lines, env, secrets),
        user_script=user_script,
        model_path=engine.model_path,
        served_name=engine.served_name,
        api_host=host,
        api_port=port,
        master_port=settings.cluster.master_port,
        memory_bytes=recipe.memory_bytes,
        gpu_memory_utilization=share,
        shared=shared,
        gpus=recipe.nodes.gpus,
        digest=agreement.compute_digest(shared),
        sysctls=tuple(sorted(recipe.host.sysctls.items())),
        kv_cache_tokens=_find_expected_tokens(recipe, settings),
        asserts=recipe.image.asserts,
        image_build=recipe.image_build(settings.engine.recipe) if engine.image == recipe.image.ref else "",
        vllm=recipe.image.vllm if engine.image == recipe.image.ref else "",
        model_pull=pull_command(engine.model_path, recipe.model.repo, recipe.model.revision),
        extra_flags=recipe.flags.extra,
        on_ray=on_ray,
        insists_on_hcas=HCAS in str((engine.args, {**recipe.env, **settings.engine.env})),
        hosts=_name_hosts(settings.cluster.nodes),
    )


def _check_node_count(recipe: Recipe, node: Node) -> None:
    needed = recipe.nodes
    if not needed.min <= node.cluster_size <= needed.max:
        nodes = str(needed.min) if needed.min == needed.max else f"{needed.min} to {needed.max}"
        raise ConfigError(
            f"recipe {recipe.name} needs {nodes} node(s), cluster.nodes names {node.cluster_size}",
            "choose another engine.recipe: `sparkd recipe list` shows them all",
        )


def _uses_ray(recipe: Recipe, settings: Settings, node: Node) -> bool:
    if recipe.executor != RAY or node.cluster_size == 1:
        return False
    if settings.engine.script:
        raise ConfigError(
            f"recipe {recipe.name} wants the executor ray, and engine.script starts the engine its own way",
            f"take engine.script out, or extend {recipe.name} with executor: mp: then the script may start Ray itself",
        )
    return True


def _name_hosts(addresses: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Address and name of each of several nodes, without which torch's rendezvous waits 10 s for a silent DNS server.

    Its sockets are IPv6, and the C library finds only this form of an IPv4 address for those (measured on torch 2.13).
    """
    if len(addresses) < 2:
        return ()
    parsed = (ip_address(address.partition("%")[0]) for address in addresses)
    return tuple(
        (f"::ffff:{address}" if address.version == 4 else str(address), f"sparkd-rank{rank}")
        for rank, address in enumerate(parsed)
    )


def _make_rank_flags(node: Node, master_port: int, *, on_ray: bool) -> tuple[str, ...]:
    """Flags of a rank. A single node gets none, because older forks do not know them."""
    if node.cluster_size == 1:
        return ()
    if on_ray:
        return ("--distributed-executor-backend", RAY)
    flags = (
        *("--distributed-executor-backend", "mp"),
        *("--nnodes", str(node.cluster_size), "--node-rank", str(node.rank)),
        *("--master-addr", node.head_address, "--master-port", str(master_port)),
    )
    # Without --headless a worker starts an API server, and the head waits forever.
    return flags if node.is_head else (*flags, "--headless")


def _configure_engine(recipe: Recipe, settings: Settings, nodes: int) -> _Engine:
    chosen = settings.engine
    variables = {**added_env(recipe, settings, nodes), **recipe.env, **chosen.env}
    env = {name: text for name, text in variables.items() if text is not None}
    secrets = {**recipe.secrets, **chosen.secrets}
    for name in secrets:
        if name in env:
            raise ConfigError(f"{name} is given both under env and under secrets", "take it out of env")
    path, volumes = recipe.model.path, recipe.container.volumes
    is_absolute = path.startswith("/")
    if is_absolute and path in (*(volume.target for volume in volumes), *recipe.caches.values()):
        raise ConfigError(f"recipe {recipe.name}: {path} is mounted twice, once as model.path", "take the volume out")
    source, target, subpath = (path, path, "") if is_absolute else (chosen.models_dir, "/models", f"/{path}")
    # model_construct, because validation reserves this target.
    model_volume = Volume.model_construct(source=source, target=target, read_only=True)
    mounted = (target, *(volume.target for volume in volumes))
    return _Engine(
        image=chosen.image or recipe.image.ref,
        args={**recipe.args, **chosen.args},
        env=env,
        secrets=tuple(Secret(name, secrets[name]) for name in sorted(secrets)),
        model_path=source + subpath,
        model_target=target + subpath,
        served_name=_choose_served_name(recipe),
        container=recipe.container.model_copy(update={"volumes": (model_volume, *volumes)}),
        caches=kept_caches(recipe.caches, env, mounted, gpu=recipe.container.gpus == "all"),
    )


def _fit_env(engine: _Engine, node: Node, *, by_tcp: bool) -> _Engine:
    """Take out the variables that name RDMA devices where none is used: NCCL takes an empty list for all devices."""
    if node.hcas and not by_tcp:
        return engine
    env = {name: text for name, text in engine.env.items() if HCAS not in text}
    if not by_tcp:
        return replace(engine, env=env)
    devices = tuple(device for device in engine.container.devices if not device.startswith(VERBS))
    return replace(engine, env=env | BY_TCP, container=engine.container.model_copy(update={"devices": devices}))


def _choose_served_name(recipe: Recipe) -> str:
    name = recipe.model.served_name or recipe.model.path.rstrip("/").rpartition("/")[2]
    if not name or name.startswith("-"):
        raise ConfigError(
            f"recipe {recipe.name}: {recipe.model.path} gives no name to serve it as, but {name!r}",
            "set model.served_name",
        )
    return name


def _find_expected_tokens(recipe: Recipe, settings: Settings) -> int | None:
    """The recipe's figure; None with another image or pool size than those with which it was measured."""
    chosen = settings.engine
    if chosen.image or any(flag.partition(".")[0] in POOL_SIZE_FLAGS for flag in chosen.args):
        return None
    tokens = recipe.expect.get(KV_CACHE_TOKENS)
    return tokens if isinstance(tokens, int) else None


def _collect_shared(recipe: Recipe, settings: Settings, node: Node, engine: _Engine) -> tuple[tuple[str, str], ...]:
    """The values of the digest. Placeholders stay unfilled, because their values differ between nodes.

    Contains the settings that change how a node reacts to an event. Settings of one node (folders, fabric names,
    preflight) and of the head's endpoint checks are left out.
    """
    cluster = settings.cluster
    return agreement.flatten(
        {
            "recipe": recipe.name,
            "image": engine.image,
            "entrypoint": [*recipe.image.entrypoint],
            "assert": [line if isinstance(line, str) else line.model_dump() for line in recipe.image.asserts],
            "model": engine.model_target,
            "served_name": engine.served_name,
            "aliases": [*recipe.model.aliases],
            "own_script": bool(settings.engine.script),
            "executor": recipe.executor,
            "plan_schema": PLAN_SCHEMA,
        },
        {
            "args": engine.args,
            "env": engine.env,
            "secrets": {secret.name: agreement.HIDDEN for secret in engine.secrets},
            "container": agreement.container_values(engine.container),
            "caches": engine.caches,
            "cluster": {
                "size": node.cluster_size,
                "head": node.head_address,
                "nodes": [*cluster.nodes],
                "master_port": cluster.master_port,
                "allow_image_difference": cluster.allow_image_difference,
            },
            # With unequal timeouts one node would keep its rank running alone.
            "supervise": {"peer_timeout_seconds": settings.supervise.peer_timeout_seconds},
        },
    )
