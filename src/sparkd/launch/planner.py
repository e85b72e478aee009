"""Recipe, settings and node make a plan. Pure: looks at nothing, changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import TypeVar

from msgspec import Struct

from sparkd.errors import ConfigError
from sparkd.flags import JsonValue
from sparkd.launch import command_line, executor, parallel, ray, script, shared
from sparkd.launch.placeholders import PlaceholderError, Placeholders
from sparkd.launch.plan import (
    PLAN_SCHEMA,
    Assertion,
    Cache,
    ContainerSpec,
    LaunchPlan,
    LineCount,
    Mount,
    Node,
    Secret,
    Ulimit,
)
from sparkd.recipes.schema import KV_CACHE_TOKENS, Lines, Recipe
from sparkd.settings import Settings

MODELS_TARGET = "/models"
READY_TIMEOUT = "VLLM_ENGINE_READY_TIMEOUT_S"
"""How long vLLM's API server waits for its engine: 600 s by itself, and a cold load takes longer."""
API_PORT = 8000
LOOPBACK = "127.0.0.1"
SIZE_THE_POOL = frozenset(
    ("block-size", "gpu-memory-utilization", "hf-overrides", "kv-cache-dtype", "kv-cache-memory-bytes",
     "max-num-batched-tokens", "num-gpu-blocks-override", "quantization", "speculative-config")
)  # fmt: skip
"""Flags that make the KV cache another size than the recipe expects."""
_HOST_NAME = re.compile(r"[A-Za-z0-9.-]+")

T = TypeVar("T")


class _Engine(Struct, frozen=True):
    """The recipe with the settings laid over it; texts still hold their placeholders."""

    image: str
    args: Mapping[str, JsonValue]
    env: Mapping[str, str]
    secrets: tuple[Secret, ...]
    model_path: str
    """On the node."""
    model_target: str
    """In the container."""
    served_name: str
    container: ContainerSpec


def make_plan(recipe: Recipe, settings: Settings, node: Node) -> LaunchPlan:
    """The plan of `node`'s rank. Raises ConfigError where recipe, settings and node do not fit together."""
    _fits(recipe, node)
    on_ray = executor.on_ray(recipe, settings, node)
    engine = _engine(recipe, settings, on_ray=on_ray)
    placeholders = Placeholders.of(node, engine.model_target)
    args = {flag: _filled(recipe, f"args.{flag}", placeholders.value, value) for flag, value in engine.args.items()}
    env = tuple((name, _filled(recipe, f"env.{name}", placeholders.text, text)) for name, text in engine.env.items())
    parallel.fits(recipe.name, args, node.cluster_size, recipe.container.gpus)
    host, port = _api(recipe, settings, args)
    alike = _shared(recipe, settings, node, engine)
    command = (
        *recipe.image.entrypoint,
        engine.model_target,
        "--served-model-name",
        engine.served_name,
        *command_line.words(args),
        *executor.flags(node, settings.cluster.master_port, on_ray=on_ray),
    )
    own_script = settings.engine.script
    argv = ("bash", script.USER_SCRIPT_TARGET, *command) if own_script else command
    asserts = tuple(_assertion(one) for one in recipe.image.asserts)
    title = f"rank {node.rank} of {recipe.name}"
    lines = script.engine(argv)
    if on_ray:
        lines = ray.lines(node, settings.cluster.master_port, engine.env, lines)
    return LaunchPlan(
        recipe=recipe.name,
        role="head" if node.rank == 0 else "worker",
        node=node,
        image=engine.image,
        entrypoint=recipe.image.entrypoint,
        argv=argv,
        env=env,
        secrets=engine.secrets,
        container=engine.container,
        caches=tuple(Cache(name, target) for name, target in recipe.caches.items()),
        script=script.render(title, lines, env, engine.secrets, asserts),
        user_script=own_script,
        model_path=engine.model_path,
        served_name=engine.served_name,
        api_host=host,
        api_port=port,
        master_port=settings.cluster.master_port,
        memory_bytes=recipe.memory_bytes,
        gpu_memory_utilization=_share_of_memory(recipe, args),
        shared=alike,
        digest=shared.digest(alike),
        sysctls=tuple(sorted(recipe.host.sysctls.items())),
        kv_cache_tokens=_expected_tokens(recipe, settings),
        asserts=asserts,
        extra_flags=recipe.flags.extra,
        on_ray=on_ray,
    )


def _assertion(said: str | Lines) -> Assertion:
    return said if isinstance(said, str) else LineCount(said.file, said.pattern, said.times)


def _fits(recipe: Recipe, node: Node) -> None:
    needed = recipe.nodes
    if not needed.min <= node.cluster_size <= needed.max:
        nodes = str(needed.min) if needed.min == needed.max else f"{needed.min} to {needed.max}"
        raise ConfigError(
            f"recipe {recipe.name} needs {nodes} node(s), cluster.nodes names {node.cluster_size}",
            "choose another engine.recipe: `sparkd recipe list` shows them all",
        )


def _engine(recipe: Recipe, settings: Settings, *, on_ray: bool) -> _Engine:
    own = settings.engine
    made = ray.ENV if on_ray else {}
    timeout = str(settings.readiness.timeout_seconds)
    env: dict[str, str | None] = {READY_TIMEOUT: timeout, **made, **recipe.env, **own.env}
    secrets = {**recipe.secrets, **own.secrets}
    for name in secrets:
        if env.get(name) is not None:
            raise ConfigError(f"{name} is given both under env and under secrets", "take it out of env")
    path = recipe.model.path
    is_absolute = path.startswith("/")
    if is_absolute and path in (*(volume.target for volume in recipe.container.volumes), *recipe.caches.values()):
        raise ConfigError(f"recipe {recipe.name}: {path} is mounted twice, once as model.path", "take the volume out")
    model_mount = Mount(path, path) if is_absolute else Mount(own.models_dir, MODELS_TARGET)
    return _Engine(
        image=own.image or recipe.image.ref,
        args={**recipe.args, **own.args},
        env={name: text for name, text in env.items() if text is not None},
        secrets=tuple(Secret(name, secrets[name]) for name in sorted(secrets)),
        model_path=path if is_absolute else f"{own.models_dir}/{path}",
        model_target=path if is_absolute else f"{MODELS_TARGET}/{path}",
        served_name=_served_name(recipe),
        container=_container(recipe, model_mount),
    )


def _served_name(recipe: Recipe) -> str:
    name = recipe.model.served_name or recipe.model.path.rstrip("/").rpartition("/")[2]
    if not name or name.startswith("-"):
        raise ConfigError(
            f"recipe {recipe.name}: {recipe.model.path} gives no name to serve it as, but {name!r}",
            "set model.served_name",
        )
    return name


def _container(recipe: Recipe, model_mount: Mount) -> ContainerSpec:
    spec = recipe.container
    return ContainerSpec(
        gpus=spec.gpus,
        ipc=spec.ipc,
        network=spec.network,
        privileged=spec.privileged,
        init=spec.init,
        shm_bytes=spec.shm_bytes,
        memory_limit_bytes=spec.memory_limit_bytes,
        ulimits=tuple(Ulimit(name, limit.soft, limit.hard) for name, limit in spec.ulimits.items()),
        devices=spec.devices,
        mounts=(model_mount, *(Mount(one.source, one.target, one.read_only) for one in spec.volumes)),
    )


def _filled(recipe: Recipe, key: str, fill: Callable[[T], T], template: T) -> T:
    try:
        return fill(template)
    except PlaceholderError as error:
        raise ConfigError(f"recipe {recipe.name}: {key}: {error}", error.hint) from None


def _api(recipe: Recipe, settings: Settings, args: Mapping[str, JsonValue]) -> tuple[str, int]:
    """Where sparkd asks the engine: an address of this node, never "all addresses"."""
    host, port = _api_host(recipe, args.get("host")), args.get("port")
    text = str(API_PORT if port is None else port)
    if not text.isdecimal() or not text.isascii() or not 1 <= int(text[:6]) <= 65535:
        raise ConfigError(f"recipe {recipe.name}: args.port is {port!r}: a number from 1 to 65535 is needed")
    observed = settings.observe.address
    taken = {settings.cluster.master_port: "cluster.master_port", settings.cluster.report_port: "cluster.report_port"}
    if observed is not None:
        taken[observed[1]] = "observe.listen"
    if int(text) in taken:
        raise ConfigError(f"recipe {recipe.name}: args.port is {text}, the port of {taken[int(text)]}", "change one")
    return host, int(text)


def _api_host(recipe: Recipe, host: JsonValue) -> str:
    if host in (None, "", "0.0.0.0", "::"):  # noqa: S104  # compared, not bound
        return LOOPBACK
    if not isinstance(host, str) or not _is_host(host):
        bare = host.strip("[]") if isinstance(host, str) else ""
        raise ConfigError(
            f"recipe {recipe.name}: args.host is {host!r}: an IP address or the name of a host is needed",
            f"write it without brackets: {bare}" if bare != host and _is_host(bare) else "such as 0.0.0.0",
        )
    return host


def _is_host(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return _HOST_NAME.fullmatch(text) is not None
    return True


def _share_of_memory(recipe: Recipe, args: Mapping[str, JsonValue]) -> float | None:
    said = args.get("gpu-memory-utilization")
    if said is None:
        return None
    try:
        share = float(said) if isinstance(said, str | int | float) and not isinstance(said, bool) else 0.0
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ConfigError(
            f"recipe {recipe.name}: args.gpu-memory-utilization is {said!r}: a number above 0, at most 1, is needed"
        )
    return share


def _expected_tokens(recipe: Recipe, settings: Settings) -> int | None:
    """What a source measured holds for its own image and flags alone."""
    own = settings.engine
    if own.image or any(flag.partition(".")[0] in SIZE_THE_POOL for flag in own.args):
        return None
    said = recipe.expect.get(KV_CACHE_TOKENS)
    return said if isinstance(said, int) else None


def _shared(recipe: Recipe, settings: Settings, node: Node, engine: _Engine) -> tuple[tuple[str, str], ...]:
    """Placeholders stay unfilled: what a node fills in is its own.

    Of the settings, those count that make the nodes act differently on the same event. Ones that a node alone is
    concerned with do not: its folders, its fabric's names, its preflight, the head's watch over the endpoint.
    """
    cluster = settings.cluster
    return shared.flat(
        {
            "recipe": recipe.name,
            "image": engine.image,
            "entrypoint": [*recipe.image.entrypoint],
            "assert": [one if isinstance(one, str) else one.model_dump() for one in recipe.image.asserts],
            "model": engine.model_target,
            "served_name": engine.served_name,
            "own_script": bool(settings.engine.script),
            "executor": recipe.executor,
            "plan_schema": PLAN_SCHEMA,
        },
        {
            "args": engine.args,
            "env": engine.env,
            "secrets": {secret.name: shared.HIDDEN for secret in engine.secrets},
            "container": shared.container(engine.container),
            "caches": recipe.caches,
            "cluster": {
                "size": node.cluster_size,
                "head": node.head_address,
                "nodes": [*cluster.nodes],
                "master_port": cluster.master_port,
                "allow_image_difference": cluster.allow_image_difference,
            },
            # A node that waits longer than the others would let its rank run on alone.
            "supervise": {"peer_timeout_seconds": settings.supervise.peer_timeout_seconds},
        },
    )
