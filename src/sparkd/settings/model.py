"""Settings: the only home of every key, its default, its bounds and its description.

`config/sparkd.toml`, the manual page and `sparkd config show` are generated from these models.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from sparkd.settings import kinds as t
from sparkd.settings.kinds import Section

FixKind = Literal["end-process", "remove-container", "unlink-segment", "drop-page-cache"]
ALL_FIXES: tuple[FixKind, ...] = ("end-process", "remove-container", "unlink-segment", "drop-page-cache")


MAX_NODES = 8


class Cluster(Section):
    """The nodes that serve one model together. The same values go on all of them."""

    nodes: t.Addresses = Field(
        (),
        description='Fabric address of every node in rank order, such as ["10.0.0.1", "10.0.0.2"]; the first is the '
        f"head. At most {MAX_NODES}. A node's rank is that of the address that it owns. Empty: this node alone.",
    )
    master_port: t.Port = Field(29501, description="Port on the head where the ranks of vLLM meet.")
    report_port: t.Port = Field(29510, description="Port on the fabric address where nodes read each other's reports.")
    key_file: t.AbsolutePath = Field(
        "/etc/sparkd/cluster.key",
        description="File with the keys that nodes sign their reports with, the same on all nodes. One key a line: the "
        "first signs, every one is accepted, so that keys can change while the nodes serve.",
    )
    allow_image_difference: bool = Field(
        False, description="Only warn where the nodes' images differ, instead of refusing to launch."
    )


class Engine(Section):
    """What is launched. image, script, args, env and secrets override the recipe's."""

    recipe: t.RecipeName = Field(
        "deepseek-v4-flash-balanced",
        description="Name of a recipe (`sparkd recipe list`), or the absolute path of a recipe file.",
    )
    models_dir: t.AbsolutePath = Field(
        "/srv/models", description="Folder of the models on this node; the container sees it, read-only, as /models."
    )
    image: t.ImageOrEmpty = Field("", description="Image of the engine. Empty: the recipe's.")
    script: t.PathOrEmpty = Field(
        "",
        description="A launch script of your own, run by bash in the container instead of vLLM. Empty: generated.",
    )
    args: t.Flags = Field(
        default_factory=dict,
        description="Flags of vLLM over the recipe's, such as max-model-len = 65536 under [engine.args]: true is a "
        "bare flag, false its --no- form, a table one JSON value.",
    )
    env: t.Variables = Field(
        default_factory=dict,
        description='Environment of the engine over the recipe\'s, such as NCCL_DEBUG = "INFO" under [engine.env].',
    )
    secrets: t.SecretFiles = Field(
        default_factory=dict,
        description="Secrets by the name of the variable that the engine gets: NAME = the file that holds it.",
    )
    load_readahead_kib: int = Field(
        0,
        ge=0,
        le=16384,
        description="KiB that the disk of the model reads ahead while the weights load, such as 8 where a load runs "
        "out of memory; then it has its own value again. 0: as it is. After a change: `sparkd units install`.",
    )
    stop_grace_seconds: int = Field(
        30, ge=1, le=600, description="How long the engine may take to end itself before it is killed."
    )


class Fabric(Section):
    """The network between the nodes."""

    interface: t.InterfaceOrEmpty = Field(
        "",
        description="Network interface of the fabric, for recipes that name it. Empty: the one that carries this "
        "node's address of cluster.nodes.",
    )
    hcas: t.Hcas = Field(
        (),
        description="RDMA devices of the fabric, such as rocep1s0f0, for recipes that name them. Empty: those of the "
        "fabric's interface, and their twins on the same cable that have addresses too.",
    )
    mtu: int = Field(
        9000,
        ge=1280,
        le=65535,
        description="MTU that interface and path between the nodes should have: preflight warns of less.",
    )


class Preflight(Section):
    """The look at the node before each launch, and what may be mended."""

    skip: t.CheckIds = Field((), description="Ids of checks that are left out.")
    downgrade: t.CheckIds = Field((), description="Ids of checks that warn where they would block.")
    allow_fixes: Annotated[tuple[FixKind, ...], Strict(False)] = Field(
        ALL_FIXES, description="Changes that preflight may make. Empty: it only looks."
    )
    wait_seconds: int = Field(
        120, ge=0, le=86400, description="How long to wait for what comes up by itself, such as docker or the fabric."
    )


class Memory(Section):
    """The memory that CPU and GPU share."""

    headroom_gib: float = Field(
        2, ge=0, le=128, description="GiB that must be left over beside the engine for a launch."
    )
    settle_seconds: int = Field(
        60,
        ge=0,
        le=3600,
        description="How long memory may take to come back before the driver is said to hold it. At most "
        "preflight.wait_seconds.",
    )
    floor_mib: int = Field(
        512,
        ge=0,
        le=65536,
        description="MiB available below which the engine is killed, for the machine would freeze. 0: never.",
    )
    load_guard: bool = Field(
        True,
        description="Give the page cache of the model's own files back, one by one, as soon as the engine has loaded "
        "them and no program uses them.",
    )


class Readiness(Section):
    """When a launch counts as serving."""

    timeout_seconds: int = Field(
        3600, ge=10, le=86400, description="How long a launch may take until it has answered a completion."
    )
    completion_timeout_seconds: int = Field(
        120, ge=1, le=3600, description="How long one completion of one token may take, at the start and as a canary."
    )


class Supervise(Section):
    """The watch over a serving engine."""

    stall_seconds: int = Field(
        360,
        ge=10,
        le=86400,
        description="Requests running and no token for this long is a stall. vLLM's own limit is 300: stay above it.",
    )
    canary_seconds: int = Field(
        300, ge=0, le=86400, description="After this long without a request, ask for one token. 0: never."
    )
    peer_timeout_seconds: int = Field(
        20, ge=10, le=3600, description="Silence of another node that counts as lost, in seconds."
    )
    proven_seconds: int = Field(
        600,
        ge=1,
        le=86400,
        description="A plan that has served for this long has proven itself: failed launches before it are forgiven, "
        "and it is kept as the last known good one, for `sparkd diff` and `sparkd rollback`.",
    )


class Observe(Section):
    """What people and monitors read."""

    listen: t.Listen = Field(
        "127.0.0.1:29511",
        description="Address and port where monitors read /metrics, /livez, /readyz and /report; empty: none.",
    )

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of `listen`; None where nothing is served."""
        return t.split_address(self.listen) if self.listen else None


class Log(Section):
    """The lines that the agent writes to the journal."""

    format: Literal["logfmt", "json"] = Field(
        "logfmt",
        description='How sparkd\'s own events are written: "logfmt", or "json", one object per line, which also has '
        "level, timestamp, node, rank and epoch. The engine's lines stay as they are.",
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info",
        description="Lowest level of sparkd's own events and of its libraries' messages; of the libraries at least "
        '"warning", except with "debug". The engine\'s lines are always written.',
    )


class Settings(BaseSettings):
    """Everything that is configured on a node. `Settings()` has the defaults: only `load` reads files and variables."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", enable_decoding=False)

    cluster: Cluster = Cluster()
    engine: Engine = Engine()
    fabric: Fabric = Fabric()
    preflight: Preflight = Preflight()
    memory: Memory = Memory()
    readiness: Readiness = Readiness()
    supervise: Supervise = Supervise()
    observe: Observe = Observe()
    log: Log = Log()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  # part of the library's signature
        init_settings: PydanticBaseSettingsSource,
        *_: object,
        **_options: object,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)

    @model_validator(mode="after")
    def _ports_differ(self) -> Settings:
        ports = {"cluster.master_port": self.cluster.master_port, "cluster.report_port": self.cluster.report_port}
        if self.observe.address is not None:
            ports["observe.listen"] = self.observe.address[1]
        taken: dict[int, str] = {}
        for key, port in ports.items():
            if port in taken:
                raise t.fault(key, port, f"{taken[port]} already has this port", other=taken[port])
            taken[port] = key
        return self

    @model_validator(mode="after")
    def _memory_settles_while_preflight_waits(self) -> Settings:
        settle, wait = self.memory.settle_seconds, self.preflight.wait_seconds
        if settle > wait:
            raise t.fault(
                "memory.settle_seconds",
                settle,
                f"must be at most preflight.wait_seconds, {wait}: preflight would never wait for long enough to say "
                "that the node needs a reboot",
                other="preflight.wait_seconds",
            )
        return self

    @model_validator(mode="after")
    def _nodes_reach_each_other(self) -> Settings:
        if len(self.cluster.nodes) > 1:
            from ipaddress import ip_address

            if len(self.cluster.nodes) > MAX_NODES:
                found = len(self.cluster.nodes)
                raise t.fault("cluster.nodes", list(self.cluster.nodes), f"names {found} nodes: 1 to {MAX_NODES} serve")
            for address in self.cluster.nodes:
                if ip_address(address).is_loopback:
                    raise t.fault("cluster.nodes", list(self.cluster.nodes), f"{address} reaches no other node")
        return self
