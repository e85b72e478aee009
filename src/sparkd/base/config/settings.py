"""Settings: the only home of every key, its default, its bounds and its description.

`config/sparkd.toml`, the manual page and `sparkd config show` are generated from these models; a key's docstring is
its description there.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Literal, get_args

from pydantic import Field, Strict, model_validator

from sparkd.base.lib import without_pydantic_extras

with without_pydantic_extras():
    from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

    from sparkd.base.config import types as t

FixKind = Literal["end-process", "remove-container", "unlink-segment", "drop-page-cache", "compact-memory"]
ALL_FIXES: tuple[FixKind, ...] = get_args(FixKind)
Event = Literal["serving", "switched", "lost", "degraded", "memory-guard", "needs-person"]
MAX_NODES = 8


class Allow(t.Section):
    """What a head may request of a node that follows it."""

    images: t.ImageNames = ()
    """Images by the beginning of their names. NAME permits every tag and digest, NAME:TAG no NAME:TAG@sha256:..."""
    mounts: t.AllowedMounts = ()
    """Files and folders beside models_dir and /dev/infiniband; a device: only a path below /dev that ends with :rw."""
    privileged: bool = False
    """Whether its container may be privileged."""


class Cluster(t.Section):
    """The nodes that serve one model together. All of them get the same values."""

    nodes: t.Addresses = ()
    """Fabric address of every node in rank order, such as ["10.0.0.1", "10.0.0.2"]; the first is the head. At most 8. A
    node's rank is that of the address that it owns. Empty: this node alone."""
    master_port: t.Port = 29501
    """Port on the head where the ranks of vLLM meet."""
    report_port: t.Port = 29510
    """Port on the fabric address where nodes read each other's reports."""
    key_file: t.AbsolutePath = "/etc/sparkd/cluster.key"
    """File with the keys that nodes sign their reports with, the same on all nodes. One key a line: the first signs,
    every one is accepted, so that keys can change while the nodes serve."""
    allow_image_difference: bool = False
    """Only warn where the nodes' images differ, instead of refusing to launch."""
    follow_head: bool = False
    """On a worker: take the recipe, cluster.nodes, cluster.master_port, cluster.allow_image_difference, engine.image,
    engine.script, engine.args, engine.env, [readiness] and [supervise] without reboot and power_ from the head, and
    keep the last ones for a start without it. Only the head's file is edited then. The head itself follows nobody."""
    allow: Allow = Allow()
    """What a head may request of this node where follow_head is true. images: beginnings of names that end where a part
    of a name does, such as "ghcr.io/spark-arena/"; empty: the images that the recipes on this node name. mounts: files
    and folders beside models_dir (read-only) and /dev/infiniband, such as "/srv/data", or "/srv/data:rw" to write
    there, and what is in them where only root can exchange it; as a device: only a path below /dev that ends with :rw,
    such as "/dev/video0:rw". privileged: whether the container may be."""


class Engine(t.Section):
    """What is launched. image, script, args, env and secrets override the recipe's."""

    recipe: t.RecipeNameOrEmpty = ""
    """Name of a recipe (`sparkd recipe list`), or the absolute path of a recipe file."""
    models_dir: t.AbsolutePath = "/srv/models"
    """Folder of the models on this node; the container sees it, read-only, as /models."""
    image: t.ImageOrEmpty = ""
    """Image of the engine. Empty: the recipe's."""
    script: t.PathOrEmpty = ""
    """A launch script of your own, run by bash in the container instead of vLLM. Empty: generated."""
    args: t.Flags = Field(default_factory=dict)
    """Flags of vLLM over the recipe's, such as max-model-len = 65536 under [engine.args]: true is a bare flag, false
    its --no- form, a table one JSON value."""
    env: t.Variables = Field(default_factory=dict)
    """Environment of the engine over the recipe's, such as NCCL_DEBUG = "INFO" under [engine.env]."""
    secrets: t.SecretFiles = Field(default_factory=dict)
    """Secrets by the name of the variable that the engine gets: NAME = the file that holds it."""
    load_readahead_kib: int = Field(0, ge=0, le=16384)
    """KiB that the disk of the model reads ahead while the weights load, such as 8 where a load runs out of memory;
    then it has its own value again. 0: as it is. After a change: `sparkd units install`."""
    stop_grace_seconds: int = Field(30, ge=1, le=600)
    """How long the engine may take to end itself before it is killed."""


class Fabric(t.Section):
    """The network between the nodes."""

    interface: t.InterfaceOrEmpty = ""
    """Network interface of the fabric, for recipes that name it. Empty: the one that carries this node's address of
    cluster.nodes."""
    hcas: t.Hcas = ()
    """RDMA devices of the fabric, such as rocep1s0f0, for recipes that name them. Empty: those of the fabric's
    interface, and their twins on the same cable that have addresses too."""
    mtu: int = Field(9000, ge=1280, le=65535)
    """MTU that interface and path between the nodes should have: preflight warns of less."""


class Preflight(t.Section):
    """The checks before each launch, and the fixes that they may apply."""

    skip: t.CheckIds = ()
    """Ids of checks that are left out."""
    downgrade: t.CheckIds = ()
    """Ids of checks that warn where they would block."""
    allow_fixes: Annotated[tuple[FixKind, ...], Strict(False)] = ALL_FIXES
    """Changes that preflight may make. Empty: it only looks."""
    wait_seconds: int = Field(120, ge=0, le=86400)
    """How long to wait for docker, the fabric and others that start by themselves."""


class Memory(t.Section):
    """The memory that CPU and GPU share."""

    headroom_gib: float = Field(2, ge=0, le=128)
    """GiB that must be left over beside the engine for a launch."""
    settle_seconds: int = Field(60, ge=0, le=3600)
    """How long memory may take to come back before the driver is said to hold it. At most preflight.wait_seconds."""
    floor_mib: int = Field(512, ge=0, le=65536)
    """MiB available below which the engine is killed, for the machine would freeze. 0: never."""
    load_guard: bool = True
    """Give the page cache of the model's own files back, one by one, as soon as the engine has loaded them and no
    program uses them."""
    contiguous_gib: float = Field(8, ge=0, le=128)
    """GiB that should be free in blocks of 2 MiB or more, which the GPU's driver needs. With less, memory is
    compacted: before a launch, and while the engine loads. 0: never."""


class Readiness(t.Section):
    """When a launch counts as serving."""

    timeout_seconds: int = Field(3600, ge=10, le=86400)
    """How long a launch may take until it has answered a completion, or a request to /pooling. Up to three times as
    long while the load makes progress (new step, reads, growing memory). Without stall_seconds, never longer."""
    stall_seconds: int = Field(600, ge=0, le=86400)
    """How long a load may stand still: no new step or shard, nothing read or written, CPU and GPU idle. 0: not
    watched."""
    completion_timeout_seconds: int = Field(120, ge=1, le=3600)
    """How long one completion of one token may take, at the start and as a canary."""
    warm: Literal["cold", "always", "never"] = "cold"
    """Whether requests of all sizes are sent before the endpoint counts as ready, until they compile no kernel more:
    on a GPU where the compile caches of any node are "cold", at each start ("always"), or "never"."""
    warm_seconds: int = Field(900, ge=10, le=86400)
    """How long that may take. Then it is ready all the same, and the journal says what was still compiled."""


class Supervise(t.Section):
    """The watch over a serving engine."""

    stall_seconds: int = Field(360, ge=10, le=86400)
    """Requests running and no progress for this long is a stall, which ends the engine; up to three times as long while
    the head's GPU computes (a GB10 that draws over 30 W), as for a long prompt that is one step; not while a compiler
    of a rank runs, for up to 30 minutes. A hang that is proven does not wait for it: a process stopped for 20 s or
    frozen for 30 s, no rank at work for 30 s. vLLM's own limit, 300, is 1800 here unless the recipe names another."""
    canary_seconds: int = Field(300, ge=0, le=86400)
    """After this long without a request, request one token; at once where a request seems to hang that the engine does
    not report. 0: never, and then a hang that begins while the engine is idle goes unseen, and an engine whose /metrics
    can't be read is degraded."""
    peer_timeout_seconds: int = Field(20, ge=10, le=3600)
    """Silence of another node that counts as lost, in seconds."""
    agent_return_seconds: int = Field(15, ge=0, le=300)
    """So long another node's agent may be away while its rank serves: the next one takes that over, and no request is
    lost. A head's agent that hangs is awaited until its watchdog ends it, 40 s, while its engine answers the worker's
    GET /health. 0: both ranks end at once."""
    proven_seconds: int = Field(600, ge=1, le=86400)
    """A plan that has served for this long has proven itself: failed launches before it are forgiven, and it is kept as
    the last known good one, for `sparkd diff` and `sparkd rollback`."""
    reboot: bool = False
    """Reboot this node where its own checks prove that only this helps (action `reboot` of sparkd-events(7)): once in
    six hours at most, and not while somebody is logged in. No head decides it for another node."""
    power_command: t.Command = ()
    """A program of root's, by its absolute path, and its arguments, that cuts another node's power and gives it back,
    as by a smart plug. It is run as root, without a shell, within the unit's bounds, for 30 s at most, with that node's
    address of cluster.nodes as SILENT_NODE. When: sparkd.toml(5), A NODE THAT HANGS. No head decides it.
    Empty: never."""
    power_after_minutes: int = Field(10, ge=5, le=1440)
    """How long the other node must have been silent: longer than it takes to boot. No head decides it."""


class Smoke(t.Section):
    """Whether the endpoint's answers make sense; `sparkd smoke` tests more of it, at any time."""

    on_start: bool = False
    """Send some ten short prompts after each start. Answers that make no sense are a warning; a new plan that `sparkd
    use` tries is always tested, and given up if its answers make no sense."""


class Observe(t.Section):
    """What people and monitors read."""

    listen: t.Listen = "127.0.0.1:29511"
    """Address and port of the page of this node, at /, and of what monitors read: /metrics, /livez, /readyz and
    /report; empty: none. Other than loopback, such as "0.0.0.0:29511", only together with token_file."""
    token_file: t.PathOrEmpty = ""
    """File of root's with mode 0600 that has the token which clients of `listen` have to send, as `Authorization:
    Bearer TOKEN` or as the password of any user; /livez and /readyz need none. Empty: no token."""

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of `listen`; None where nothing is served."""
        return t.split_address(self.listen) if self.listen else None


class Notify(t.Section):
    """Messages to people. Try them with `sparkd notify test`."""

    command: t.PathOrEmpty = ""
    """A program of root's that gets each message as JSON on stdin and is run as root, within the unit's bounds; with
    another exit code than 0 the message is tried again later. After a change: `sparkd units install`. Empty: none."""
    webhook_file: t.PathOrEmpty = ""
    """File with the URL that messages are sent to, readable by root alone: the URL is often all that a sender needs.
    https, or http to a private address. Empty: none."""
    template: Literal["json", "ntfy", "slack", "discord"] = "json"
    """Form of the messages to that URL: "json", this project's own, or that of the receiver: "ntfy", "slack" (which
    others take, too) or "discord"."""
    degraded_minutes: int = Field(10, ge=0, le=10080)
    """Minutes that the service is degraded before a message says so."""
    events: Annotated[tuple[Event, ...], Strict(False)] = get_args(Event)
    """What messages are about."""

    @property
    def configured_ways(self) -> tuple[str, ...]:
        """The keys by which messages are sent."""
        return tuple(name for name in ("command", "webhook_file") if getattr(self, name))


class Log(t.Section):
    """The lines that the agent writes to the journal."""

    format: Literal["logfmt", "json"] = "logfmt"
    """How sparkd's own events are written: "logfmt", or "json", one object per line, which also has level, timestamp,
    node, rank and epoch. The engine's lines stay as they are."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level of sparkd's own events and of its libraries' messages, of "debug", "info", "warning" and "error"; of
    the libraries at least "warning", except with "debug". The engine's lines are always written."""


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
    smoke: Smoke = Smoke()
    observe: Observe = Observe()
    notify: Notify = Notify()
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

    @property
    def ports(self) -> dict[str, int]:
        """Every port of this node that a key sets, by the key."""
        ports = {"cluster.master_port": self.cluster.master_port, "cluster.report_port": self.cluster.report_port}
        return ports | ({"observe.listen": self.observe.address[1]} if self.observe.address else {})

    @model_validator(mode="after")
    def _check_ports(self) -> Settings:
        """No two keys may set one port."""
        taken: dict[int, str] = {}
        for key, port in self.ports.items():
            if (other := taken.setdefault(port, key)) != key:
                value = self.observe.listen if key == "observe.listen" else port
                raise t.fault(key, value, f"{other} already has this port", other)
        return self

    @model_validator(mode="after")
    def _check_observers(self) -> Settings:
        """Beyond this machine, only with a token."""
        observe = self.observe
        if observe.address and not observe.token_file and not ip_address(observe.address[0]).is_loopback:
            needed = "reaches beyond this machine: set observe.token_file too, or listen on 127.0.0.1"
            raise t.fault("observe.listen", observe.listen, needed, "observe.token_file")
        return self

    @model_validator(mode="after")
    def _check_waits(self) -> Settings:
        settle, wait = self.memory.settle_seconds, self.preflight.wait_seconds
        if settle > wait:
            needed = (
                f"must be at most preflight.wait_seconds, {wait}: preflight would never wait for long enough to say "
                "that the node needs a reboot"
            )
            raise t.fault("memory.settle_seconds", settle, needed, "preflight.wait_seconds")
        return self

    @model_validator(mode="after")
    def _check_node_count(self) -> Settings:
        nodes = self.cluster.nodes
        if len(nodes) > MAX_NODES:
            raise t.fault("cluster.nodes", list(nodes), f"names {len(nodes)} nodes: 1 to {MAX_NODES} serve")
        return self

    @model_validator(mode="after")
    def _check_node_addresses(self) -> Settings:
        """No loopback address among several."""
        nodes = self.cluster.nodes
        loopback = next((address for address in nodes if ip_address(address).is_loopback), None)
        if loopback and len(nodes) > 1:
            raise t.fault("cluster.nodes", list(nodes), f"{loopback} reaches no other node")
        return self
