"""The parsers of text from outside, each with good inputs and what its callers handle. Used by tests/fuzz.py."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.tree import Tree
from tests.unit.node_reports import HEAD_REPORT
from tests.unit.tools.test_planted_secrets import PLANTED

from sparkd.agent.cluster import inventory, log_pages
from sparkd.agent.cluster.inventory import Image, Inventory, Model
from sparkd.agent.cluster.peer_reader import parse_peer_report
from sparkd.agent.engine.load_progress import LoadProgress, advance_progress
from sparkd.base.cluster.auth import KeyRing
from sparkd.base.cluster.following import followed_context
from sparkd.base.config import Settings
from sparkd.base.config.settings import Allow, Cluster, Fabric
from sparkd.base.config.sources import load_settings
from sparkd.base.host import (
    Host,
    cgroups,
    docker,
    docker_config,
    grub,
    kernel,
    meminfo,
    owner,
    processes,
    safetensors,
    sockets,
    unit_commands,
    units,
    weights,
)
from sparkd.base.host.files import Files
from sparkd.base.host.journal import Line, Lines, parse_line
from sparkd.base.host.kernel_events import parse_event, parse_printed
from sparkd.base.lib.dockerd.reader import DockerError, frames
from sparkd.base.lib.errors import SparkdError
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.redactor import Redactor
from sparkd.base.lib.text import sanitize
from sparkd.base.plan.agreement import parse_values
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.image_asserts import find_fault
from sparkd.base.plan.model import Node
from sparkd.base.plan.script import exec_lines, render_script
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.state.known_good import FILE as KNOWN_GOOD
from sparkd.base.state.launch_history import read_history
from sparkd.base.state.rank_record import RANK_FILE, RankRecord, read_rank
from sparkd.base.state.shared_config import FILE as HEAD_CONFIG
from sparkd.base.state.shared_config import dump as dump_shared
from sparkd.base.state.shared_config import make_shared
from sparkd.base.state.switch import FILE as SWITCH
from sparkd.base.state.switch import Chosen, Event, Stage, Switch, step
from sparkd.base.status.model import dump, parse
from sparkd.base.vllm.command import parse_command
from sparkd.base.vllm.counters import parse_counters
from sparkd.base.vllm.flag import parse_amount, parse_json
from sparkd.base.vllm.known_errors import explain
from sparkd.base.vllm.lint.model import parse_limits
from sparkd.base.vllm.lint.script import parse_script
from sparkd.base.vllm.log_lines import LineSplitter, LogForwarder
from sparkd.tools.importers.command import find_server, parse_serve
from sparkd.tools.importers.convert import import_file
from sparkd.tools.importers.inner_shell import commands_in_container
from sparkd.tools.importers.source import UnusableRecipeError
from sparkd.tools.importers.templates import Values, format_template, substitute
from sparkd.tools.importers.variables import CommandError
from sparkd.tools.node.inventory_comparison import find_missing
from sparkd.tools.setup.join_code import JoinCode

TESTS = Path(__file__).parent
LOGS, RECIPES = TESTS / "unit/engine/engine-logs", TESTS.parent / "config/recipes"


class Parser(NamedTuple):
    run: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    handled: tuple[type[BaseException], ...] = ()
    """What its callers handle."""
    share: float = 1.0
    """Of a fast one's inputs."""


def text(run: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: run(data.decode("utf-8", "surrogateescape" if len(data) % 2 else "replace"))


def engine_log(data: bytes) -> None:
    splitter, forwarder, progress = LineSplitter(), LogForwarder(Redactor(("s3cret",)), "127.0.0.1"), LoadProgress()
    half = len(data) // 2
    for line in (*splitter.feed(data[:half]), *splitter.feed(data[half:]), *splitter.flush()):
        progress = advance_progress(progress, line, 0.0, 1 + len(line) % 2)
        explain(line)
        for _ in forwarder.forward(line, 0.0):
            pass
    progress.root_cause(0.0)


def docker_frames(data: bytes) -> None:
    rest = memoryview(data)

    def read(count: int) -> bytes:
        nonlocal rest
        taken, rest = bytes(rest[:count]), rest[count:]
        return taken

    for _ in frames(read):
        pass


def commands(raw: str) -> None:
    for command in commands_in_container(raw, {}, {}):
        entrypoint, end = find_server(command.words)
        parse_serve(entrypoint, command.words[end:])


class Machine:
    """One file of a machine at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = Host(root).files

    def put(self, path: str, content: bytes) -> Path:
        real = self.root / path.lstrip("/")
        try:
            real.write_bytes(content)
        except FileNotFoundError:
            real.parent.mkdir(parents=True, exist_ok=True)
            real.write_bytes(content)
        return real

    def at(self, path: str, read: Callable[[], object], mode: int = 0o600) -> Callable[[bytes], object]:
        def run(data: bytes) -> object:
            self.put(path, data).chmod(mode)
            return read()

        return run

    def docker(self, path: str, read: Callable[[Host], object]) -> Callable[[bytes], object]:
        def run(data: bytes) -> object:
            self.put(f"/.sparkd/docker{path}.json", data)
            return read(Host(self.root))

        return run


CONTAINER = "c" * 64
DETAIL = {
    "Id": CONTAINER,
    "Image": "sha256:i",
    "Name": "/sparkd-rank0",
    "Path": "vllm",
    "Args": ["serve"],
    "State": {"Running": True, "Pid": 7, "ExitCode": 0, "StartedAt": "2026-11-22T00:00:00Z"},
    "Config": {"Image": "x:1", "Labels": {"io.sparkd.rank": "0"}, "Cmd": ["vllm", "serve"], "Env": ["A=1"]},
    "HostConfig": {"RestartPolicy": {"Name": "no"}, "IpcMode": "host"},
}


COUNTERS = b"".join(
    b'# TYPE %s gauge\n%s{engine="0",model_name="tiny"} 1.5e+03\n' % (name, name)
    for name in (
        b"vllm:num_requests_running",
        b"vllm:num_requests_waiting",
        b"vllm:prompt_tokens_total",
        b"vllm:generation_tokens_total",
        b"vllm:iteration_tokens_total_count",
        b"vllm:kv_cache_usage_perc",
    )
)


def proc(machine: Machine) -> Iterator[tuple[str, Parser]]:
    files, handled = machine.files, (OSError, ValueError)
    stat = (
        b"7 (VLLM::EngineCor) S 1 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 100 1000 10 18446744073709551615 "
        + b"0 " * 27
    )
    status = b"Name:\tx\nUid:\t0\t0\t0\t0\nNSpid:\t7\t1\nRssAnon:\t10 kB\nRssShmem:\t0 kB\n"
    yield "/proc/PID/stat", Parser(processes.parse_stat, (stat,), handled)
    yield (
        "/proc/PID/status",
        Parser(machine.at("/proc/7/status", lambda: processes.read_status(files, 7)), (status,), (*handled, KeyError)),
    )
    yield (
        "/proc/PID/cmdline",
        Parser(machine.at("/proc/7/cmdline", lambda: processes.read_argv(files, 7)), (b"vllm\0serve\0/m\0",), handled),
    )
    yield (
        "/proc/PID/cgroup",
        Parser(
            machine.at("/proc/7/cgroup", lambda: cgroups.read_group(files, 7)),
            (
                b"0::/system.slice/docker-" + b"a" * 64 + b".scope",
                b"0::/user.slice/user@1000.service/app-a\\x2db.service",
            ),
            handled,
        ),
    )
    yield (
        "/proc/meminfo",
        Parser(
            machine.at("/proc/meminfo", lambda: meminfo.read_meminfo(files)),
            (b"MemTotal: 100 kB\nMemFree: 2 kB\nMemAvailable: 3 kB\n",),
            (*handled, KeyError),
        ),
    )
    yield (
        "/proc/swaps",
        Parser(
            machine.at("/proc/swaps", lambda: meminfo.read_swaps(files)),
            (b"Filename Type Size Used Priority\n/swap\\040x file 100 1 -2\n",),
            handled,
        ),
    )
    yield (
        "/proc/net/tcp",
        Parser(
            machine.at("/proc/net/tcp", lambda: sockets.read_proc_listeners(files)),
            (b"  sl\n   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 77 1 0\n",),
            handled,
        ),
    )
    yield (
        "/etc/default/grub",
        Parser(
            machine.at("/etc/default/grub", lambda: grub.read_next_boot(files)),
            (b'GRUB_CMDLINE_LINUX_DEFAULT="quiet # x" # y\nGRUB_CMDLINE_LINUX+="${GRUB_CMDLINE_LINUX:-a} b"\n',),
            handled,
        ),
    )
    yield (
        "/etc/passwd",
        Parser(
            machine.at("/etc/passwd", lambda: processes.user_name(files, 0)),
            (b"root:x:0:0:root:/root:/bin/sh\n",),
            handled,
        ),
    )
    yield (
        "unit files",
        Parser(text(units.parse_assignments), (b'[Service]\nExecStart=/bin/a "b c" \\\n  -d\n# x\nEnvironment=A=1\n',)),
    )
    yield (
        "ExecStart=",
        Parser(
            text(unit_commands.parse_command_lines),
            (b"-/bin/a 'b\\x41 c' ; @/bin/x y \\U0001F600 \\777",),
            (ValueError,),
        ),
    )


def states(machine: Machine) -> Iterator[tuple[str, Parser]]:
    files = machine.files
    account = b'{"pid": 7, "command": "sparkd run", "invocation": "x", "start_time": 100}'
    history = (
        b'{"schema": 1, "launches": [], "last_exit": {"reason": "x", "code": 13, "at": "2026-11-22T00:00:00+00:00"}}'
    )
    yield (
        "owner.json",
        Parser(
            machine.at("/run/sparkd/owner.json", lambda: owner.read_owner(files)),
            (account, b'{"x":' * 9000),
            (OSError,),
        ),
    )
    yield (
        "launch history",
        Parser(machine.at("/var/lib/sparkd/launch-history.json", lambda: read_history(files)), (history,), (OSError,)),
    )
    yield (
        "known good",
        Parser(
            machine.at("/var/lib/sparkd/known-good.json", lambda: KNOWN_GOOD.read(files)),
            (b'{"schema": 1, "entries": []}',),
        ),
    )
    recipe, engine = load_recipe("tiny-cpu", [RECIPES]).recipe, Settings().engine
    chosen = Chosen(recipe, engine, until="2026-11-22T00:00:00+00:00")

    def step_switch() -> None:
        choice = SWITCH.read(files)
        if choice is not None:
            choice.expired(datetime(2026, 1, 1, tzinfo=UTC))
            steps = [step(choice, event) for event in Event]
            assert all(after is None or after.chosen in (choice.to, choice.before) for after in steps)

    yield (
        "switch",
        Parser(
            machine.at(SWITCH.path, step_switch),
            (SWITCH.encode(Switch("f", Stage.TRYING, chosen, (chosen,), 1, 60, "2026")).encode(),),
        ),
    )
    started = RankRecord("r", "i", "b", "p", "e", "rdma", container_id="c", pid=60, segments={"/dev/shm/psm_0": (1, 2)})
    yield (
        "rank-record",
        Parser(
            machine.at(RANK_FILE.path, lambda: read_rank(Host(machine.root))), (RANK_FILE.encode(started).encode(),)
        ),
    )
    place = Inventory("n", 1, True, Allow(), ("i:",), "/srv/models", (Model("m", 1),), (Image("i:1", "x"),))
    wanted = make_plan(recipe, Settings(), Node(0, "127.0.0.1", "127.0.0.1", 1))

    def judge_inventory(content: bytes) -> None:
        other = inventory.CODEC.decode(content)
        assert all(reason and hint for reason, hint in find_missing(wanted, int, Settings(), place, other))

    line = Line(1, "2b", 6, "engine| INFO: ready")
    yield (
        "lines of another node",
        Parser(
            log_pages.parse,
            (log_pages.CODEC.encode(log_pages.LogPage("n", 1, Lines((line,)))).encode(),),
            (ValueError,),
        ),
    )
    yield (
        "query for lines",
        Parser(
            lambda data: log_pages.parse_query(data.decode("latin-1")), (b"since=1&until=9&priority=7&engine=0",), ()
        ),
    )
    journal_line = b'{"__REALTIME_TIMESTAMP":"1","__CURSOR":"s=a;i=2b","MESSAGE":[27,91],"PRIORITY":"4"}'
    yield "journal", Parser(lambda data: parse_line(data, Redactor()), (journal_line,), ())
    yield "inventory", Parser(judge_inventory, (inventory.CODEC.encode(place).encode(),), (ValueError,))
    yield (
        "cluster key",
        Parser(
            machine.at(
                "/etc/sparkd/cluster.key",
                lambda: KeyRing(Files(files.root, machine.root.stat().st_uid), "/etc/sparkd/cluster.key"),
            ),
            (b"# old\n" + b"ab" * 32 + b"\n",),
            (SparkdError,),
        ),
    )
    settings = (
        TESTS.parent / "config/sparkd.toml"
    ).read_bytes() + b'\n[cluster]\nnodes = ["10.0.0.1", "10.0.0.2"]\n[engine]\nargs = {a = 1.5}\n'
    small = (
        b'[engine]\nrecipe = "x"\nargs = {max-model-len = 4096}\nenv = {A = "1"}\n'
        b'[cluster]\nnodes = ["10.0.0.1"]\n[memory]\nheadroom_gib = 2\n'
    )
    yield (
        "settings",
        Parser(
            machine.at("/etc/sparkd/sparkd.toml", partial(load_settings, {}, machine.root)),
            (small, small, small, settings),
            (SparkdError,),
        ),
    )
    yield (
        "settings from variables",
        Parser(
            text(lambda raw: load_settings(dict(one.partition("=")[::2] for one in raw.split("\n")), Path("/nowhere"))),
            (b'SPARKD_ENGINE__ARGS={"a": 1}\nSPARKD_CLUSTER__NODES=10.0.0.1,10.0.0.2\nSPARKD_MEMORY__HEADROOM_GIB=3',),
            (SparkdError,),
        ),
    )


def head_config(machine: Machine) -> Parser:
    """What a worker takes from its head: whatever becomes a plan is within `cluster.allow`."""
    worker = Machine(machine.root / "worker")
    worker.put("/proc/net/fib_trie", b"     |-- 10.0.0.2\n        /32 host LOCAL\n")
    worker.put("/proc/net/route", b"Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n")
    nodes, place, host = ("10.0.0.1", "10.0.0.2"), Node(1, "10.0.0.2", "10.0.0.1", 2), Host(worker.root)
    own = Settings(
        cluster=Cluster(nodes=nodes, follow_head=True, allow=Allow(images=("sparkd-test/",))),
        fabric=Fabric(interface="bond0"),
    )
    recipe = load_recipe("tiny-cpu-pair", [RECIPES]).recipe
    shared = make_shared(own, recipe, "", "", worker.files)

    def follow(data: bytes) -> None:
        plan = followed_context(HEAD_CONFIG.decode(data), own, host, place).plan
        assert plan.image.startswith("sparkd-test/") and not plan.container.privileged
        assert all(one.source.startswith("/srv/models") and one.read_only for one in plan.container.volumes)
        assert all(one.startswith("/dev/infiniband") for one in plan.container.devices)
        assert not plan.secrets and plan.node.head_address == "10.0.0.1"

    return Parser(follow, (dump_shared(shared),), (ValueError, SparkdError), 0.3)


def recipes(machine: Machine) -> Iterator[tuple[str, Parser]]:
    own = machine.root / "own.yaml"
    foreign = machine.root / "foreign.yaml"
    shipped = tuple(
        sorted((one.read_bytes() for one in RECIPES.glob("*.yaml") if b"extends" not in one.read_bytes()), key=len)[:4]
    )
    published = tuple(
        sorted((one.read_bytes() for one in (TESTS / "unit/recipes/foreign-recipes").rglob("*.y*ml")), key=len)[:12]
    )
    yield "recipes", Parser(machine.at("own.yaml", lambda: load_recipe(str(own), ())), shipped, (SparkdError,), 0.1)
    yield (
        "importers",
        Parser(machine.at("foreign.yaml", lambda: import_file(foreign, {})), published, (SparkdError,), 0.1),
    )
    yield "configuration of the head", head_config(machine)
    line = b"""FOO=bar exec vllm serve 'a b' --x "c d" --y '{"a": [1, "x"]}' -tp 2 \\\n --port 8000 # x\n"""
    yield "command splitter", Parser(text(commands), (line,), (CommandError,))
    yield (
        "templates of eugr",
        Parser(
            text(lambda raw: format_template(raw, Values({"port": 1, "a": "b"}))),
            (b"vllm {port:>5} {{x}} {a!r}",),
            (UnusableRecipeError, CommandError),
        ),
    )
    yield (
        "templates of sparkrun",
        Parser(
            text(lambda raw: substitute(raw, Values({"port": 1, "a": "{port}"}))),
            (b"vllm {port} {{x}} {a}",),
            (UnusableRecipeError, CommandError),
        ),
    )
    yield (
        "launch script",
        Parser(text(lambda raw: render_script(raw[:99], exec_lines(raw.split(" ")), [("A", raw)], [])), (line,)),
    )
    yield "engine.script", Parser(text(lambda raw: parse_script(raw, {})), (b"#!/bin/bash\nexport A=1\n" + line,))
    yield (
        "flags",
        Parser(
            text(lambda raw: parse_command(raw.split(" "))),
            (b"vllm serve m --max-model-len 128k --x.y=1 -tp 2 --enable-a",),
        ),
    )
    yield "amounts", Parser(text(parse_amount), (b"128K", b"1.5g", b"4096"))
    index = b'{"metadata": {"total_size": 10}, "weight_map": {"a": "model-00001-of-00002.safetensors"}}'
    config = (
        b'{"model_type": "llama", "max_position_embeddings": 4096, '
        b'"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}}'
    )
    tensors = b'\x40\0\0\0\0\0\0\0{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}           ' + b"x" * 8
    files, limits = machine.files, lambda: parse_limits(weights.read_config(machine.files, "/m"))
    yield (
        "index of weights",
        Parser(machine.at("/m/i.json", lambda: weights.read_index(files, "/m/i.json")), (index,), (OSError,)),
    )
    yield (
        "file of weights",
        Parser(machine.at("/m/w", lambda: safetensors.find_fault(files, "/m/w")), (tensors,), (OSError,)),
    )
    yield "config.json", Parser(machine.at("/m/config.json", limits), (config,))
    yield "JSON flags", Parser(text(parse_json), (b'{"a": 1k, "b": [1.5, null, "x"]}',), (ValueError,))


def parsers(root: Path) -> dict[str, Parser]:
    machine = Machine(root)
    logs = tuple(
        line for path in sorted(LOGS.glob("*.log")) for line in path.read_bytes().splitlines(keepends=True)[::3]
    )
    cubic = b"Capturing CUDA graphs" + b": 1% 1/1" * 600 + b"\n"
    report = dump(HEAD_REPORT).encode()
    detail = json.dumps(DETAIL).encode()
    listed = json.dumps(
        [{**DETAIL, "Names": ["/sparkd-rank0"], "Labels": {"io.sparkd.rank": "0"}, "State": "running"}]
    ).encode()
    tree = Tree(root)
    tree.dockerd()
    tree.process(7, "sparkd")
    machine.put("/.sparkd/docker/containers/json.json", listed)
    machine.put(f"/.sparkd/docker/containers/{CONTAINER}/json.json", detail)
    handled = (OSError, DockerError, SparkdError)

    def kernel_line(content: bytes) -> object:
        record = kernel.parse_record(content)
        return parse_event(record) if record else None

    return {
        "engine log": Parser(
            engine_log, (*logs, cubic, b"(" * 16_384, b"CPU KV cache size: " + b"9" * 4400 + b" tokens\n")
        ),
        "docker frames": Parser(docker_frames, (b"\1\0\0\0\0\0\0\5hello\2\0\0\0\0\0\0\3abc",), (DockerError,)),
        "known errors": Parser(text(explain), (b"port: 29501 EADDRINUSE",)),
        "printed kernel log": Parser(text(parse_printed), (b"[  12.3] NVRM: Xid (PCI:0000:01:00): 119, x",)),
        "kernel log": Parser(
            kernel_line,
            (
                b"4,1,5000,-;NVRM: Xid (PCI:000f:01:00): 154, GPU recovery action changed to 0x1 (Reset)",
                b"4,2,6000,-;Out of memory: Killed process 12 (python3) total-vm:1kB",
            ),
        ),
        "failed asserts": Parser(text(find_fault), (b"a\nthe image is not what the recipe needs: x\n",)),
        "redaction": Parser(
            text(Redactor(("s3cret-value",))), (b"api_key='hunter22' token = abcdef Bearer hf_abcdefghijklmnop1234",)
        ),
        "redaction of causes": Parser(
            text(Redaction(("s3cret-value",))), tuple(one.encode() for one, _ in PLANTED.values()), share=0.3
        ),
        "names": Parser(text(sanitize), (b"name",)),
        "metrics": Parser(parse_counters, (COUNTERS,)),
        "peers' reports": Parser(lambda data: parse_peer_report(data, 0), (report,)),
        "join codes": Parser(text(JoinCode.parse), (str(JoinCode("10.0.0.1", 1 << 89)).encode(),), (SparkdError,)),
        "own report": Parser(text(parse), (report,)),
        "peers' plans": Parser(parse_values, (b'{"image": "x", "flag.a": "1"}',)),
        "docker list": Parser(machine.docker("/containers/json", docker.read_containers), (listed,), handled, 0.3),
        "docker inspect": Parser(
            machine.docker(f"/containers/{CONTAINER}/json", docker.read_containers), (detail,), handled, 0.3
        ),
        "docker info": Parser(
            machine.docker("/info", docker_config.read_data_root),
            (b'{"LiveRestoreEnabled": true, "DockerRootDir": "/x"}',),
            handled,
            0.3,
        ),
        "daemon.json": Parser(
            machine.at("/etc/docker/daemon.json", lambda: docker_config.keeps_containers(Host(root))),
            (b'{"default-shm-size": "64M", "live-restore": true}',),
            (*handled, ValueError),
        ),
        **dict(proc(machine)),
        **dict(states(machine)),
        **dict(recipes(machine)),
    }
