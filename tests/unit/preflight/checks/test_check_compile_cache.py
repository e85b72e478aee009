"""The compile caches of the plan's image, and those of others."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.plans import HEAD, plan
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.compile_cache import NOT_KEPT, CacheFacts, CompileCache
from sparkd.base.config import Settings
from sparkd.base.host import Host, caches, docker_image
from sparkd.base.host.caches import Folder
from sparkd.base.plan.inputs import CheckInputs, MemoryNeed
from sparkd.base.plan.model import Cache
from sparkd.base.state.launch_history import FILE, LaunchHistory

ID, OTHER = "ab" * 32, "cd" * 32
REF = "ghcr.io/x/vllm:1"
CACHES = (Cache("vllm", "/root/.cache/vllm"), Cache("triton", "/root/.triton"))
PLAN = replace(plan(HEAD), image=REF, caches=CACHES)
CHECK = CompileCache(PLAN, MemoryNeed(None, 0.85, 0))
FULL = Folder(caches.path(ID, "vllm"), "folder", 100, 3 << 30)
EMPTY = Folder(caches.path(ID, "vllm"), "folder")
MISSING = Folder(caches.path(ID, "vllm"), "missing")
UNUSED = Folder(caches.path(ID, "triton"), "folder")
USED = ("vllm", "triton")
COMPILES = {"args": {"compilation-config": {"custom_ops": ["all"]}}}


def facts(*folders: Folder, user: str = "", used: tuple[str, ...] = ()) -> CacheFacts:
    return CacheFacts("known", folders, user, used)


@pytest.mark.parametrize(
    ("cache_facts", "level", "text"),
    [
        (facts(FULL, UNUSED, used=USED), Level.OK, "3.0 GiB kept for this image"),
        (facts(replace(FULL, whole=False)), Level.OK, "at least 3.0 GiB kept"),
        (facts(MISSING), Level.OK, "none yet for this image: the first start compiles from scratch"),
        (facts(EMPTY, UNUSED), Level.OK, "none yet"),
        (facts(MISSING, UNUSED, used=USED), Level.WARN, "the cache vllm is gone"),
        (facts(EMPTY, UNUSED, used=USED), Level.WARN, "its caches are empty"),
        (facts(MISSING, replace(FULL, path="x/triton"), used=("triton",)), Level.OK, "3.0 GiB"),
        (facts(replace(EMPTY, kind="file")), Level.BLOCK, "is no folder, but a file"),
        (
            facts(FULL, user="vllm"),
            Level.WARN,
            f"the image runs as vllm, who can't write to vllm in {caches.ROOT}/{ID}",
        ),
        (facts(MISSING, user="vllm"), Level.WARN, "who can't write to vllm"),
        (facts(replace(FULL, uid=1000), user="1000"), Level.OK, "3.0 GiB"),
        (facts(replace(FULL, writable_by_others=True), user="vllm"), Level.OK, "3.0 GiB"),
        (facts(FULL, user="root"), Level.OK, "3.0 GiB"),
        (
            replace(facts(FULL), shared="/data"),
            Level.BLOCK,
            f"others than root may write to /data, and so to {caches.ROOT}",
        ),
        (CacheFacts("away"), Level.SKIPPED, "docker is away"),
        (CacheFacts("missing"), Level.SKIPPED, "the image is not on this node"),
        (CacheFacts("HTTP 500"), Level.SKIPPED, "HTTP 500"),
        (replace(facts(FULL), others=2, others_bytes=5 << 30), Level.OK, "2 other images have 5.0 GiB"),
    ],
)
def test_a_cache_that_is_gone_or_closed_warns_and_one_that_is_no_folder_blocks(
    cache_facts: CacheFacts, level: Level, text: str
) -> None:
    expect(CHECK.judge(cache_facts), level, text)


def test_an_engine_that_does_not_compile_may_leave_its_caches_empty() -> None:
    eager = replace(PLAN, argv=(*PLAN.argv, "--enforce-eager"))
    assert replace(CHECK, plan=eager).judge(facts(EMPTY, UNUSED, used=USED)).level is Level.OK


GIB = 1 << 30
CUSTOM = replace(CHECK, plan=replace(plan(HEAD, **COMPILES), image=REF, caches=CACHES))
GONE, WARM = Folder(caches.path(ID, "tilelang"), "folder"), Folder(caches.path(ID, "tilelang"), "folder", 3, 9)


def cold(*folders: Folder, available: int, before: bool = False, gpu: int | None = None) -> CacheFacts:
    return replace(
        facts(FULL, UNUSED, used=USED),
        custom_ops=folders,
        compiled_before=before,
        total_bytes=120 * GIB,
        available_bytes=available,
        gpu_total_bytes=gpu,
    )


@pytest.mark.parametrize(
    ("cache_facts", "level", "text"),
    [
        (
            cold(EMPTY, GONE, available=105 * GIB),
            Level.BLOCK,
            "105.0 GiB available, more than 105.0 GiB needed (102.0 GiB and 3.0",
        ),
        (cold(EMPTY, GONE, available=105 * GIB + 1), Level.WARN, "(vllm empty, tilelang empty)"),
        (cold(FULL, GONE, available=9 * GIB), Level.BLOCK, "(tilelang empty)"),
        (cold(FULL, NOT_KEPT, available=9 * GIB), Level.BLOCK, "(tilelang not kept)"),
        (cold(FULL, WARM, available=9 * GIB), Level.OK, "3.0 GiB kept"),
        (cold(FULL, GONE, available=9 * GIB, before=True), Level.OK, "3.0 GiB kept"),  # this model does not use it
        (cold(FULL, replace(GONE, kind="missing"), available=9 * GIB), Level.BLOCK, "(tilelang empty)"),
        (cold(FULL, NOT_KEPT, available=9 * GIB, before=True), Level.BLOCK, "(tilelang not kept)"),
        (cold(EMPTY, GONE, available=9 * GIB, before=True), Level.BLOCK, "(vllm empty, tilelang empty)"),
        (cold(EMPTY, GONE, available=9 * GIB, gpu=80 * GIB), Level.OK, "3.0 GiB kept"),
    ],
)
def test_custom_ops_are_compiled_only_where_the_memory_is_there(
    cache_facts: CacheFacts, level: Level, text: str
) -> None:
    expect(CUSTOM.judge(cache_facts), level, text)
    assert CHECK.judge(cache_facts).level is Level.OK, "the plan does not compile them"


def test_the_hint_names_the_share_that_leaves_room_and_the_shortage_may_be_freed() -> None:
    cold_facts = cold(EMPTY, GONE, available=104 * GIB)
    verdict = CUSTOM.judge(cold_facts)
    assert "gpu-memory-utilization to 0.84 " in verdict.hint  # 101 of 120 GiB
    assert verdict.shortage_bytes == GIB
    in_the_way = CUSTOM.judge(replace(cold_facts, caches=(replace(EMPTY, kind="file"),)))
    expect(in_the_way, Level.BLOCK, shortage_bytes=0)


def compiling_check(**changes: Any) -> CompileCache:
    """The check of a shipped plan that compiles custom ops, with these changes of its recipe."""
    return CompileCache.from_inputs(CheckInputs(replace(plan(HEAD, **COMPILES, **changes), image=REF), Settings()))


def test_a_shipped_plan_is_judged_by_what_is_in_its_folders(machine: Tree) -> None:
    machine.meminfo(MemTotal=121, MemFree=117, MemAvailable=117)
    check = compiling_check()
    machine.file(f"{caches.path(ID, 'vllm')}/x", "1")
    expect(check.run(Host(machine.root))[1], Level.WARN, "(tilelang empty)")
    machine.file(f"{caches.path(ID, 'tilelang')}/x", "1")
    assert "empty" not in check.run(Host(machine.root))[1].reason


@pytest.mark.parametrize(
    ("kept", "path"),
    [
        pytest.param({"container": {"volumes": ["/srv/t:/root/.tilelang:rw"]}}, "/srv/t", id="a volume of the user's"),
        pytest.param({"caches": {"home": "/root"}}, f"{caches.path(ID, 'home')}/.tilelang", id="the whole home"),
    ],
)
def test_a_cache_is_where_a_mount_keeps_it(machine: Tree, kept: dict[str, object], path: str) -> None:
    machine.meminfo(MemTotal=121, MemFree=117, MemAvailable=117)
    for name in ("vllm", "home/.cache/vllm"):
        machine.file(f"{caches.path(ID, name)}/x", "1")
    check = compiling_check(**kept)
    expect(check.run(Host(machine.root))[1], Level.WARN, "(tilelang empty)")
    machine.file(f"{path}/x", "1")
    assert "empty" not in check.run(Host(machine.root))[1].reason


def test_an_eager_engine_compiles_no_custom_ops() -> None:
    eager = plan(HEAD, args={**COMPILES["args"], "enforce-eager": True})
    assert not CompileCache.from_inputs(CheckInputs(eager, Settings())).compiles_ops


def test_caches_of_a_heads_plan_are_known_by_where_they_are() -> None:
    gone = Folder(caches.path(ID, "_head/vllm"), "missing")
    check = replace(CHECK, plan=replace(PLAN, caches=(Cache("_head/vllm", "/root/.cache/vllm"),)))
    verdict = check.judge(CacheFacts("known", (gone,), used_before=("_head/vllm",)))
    expect(verdict, Level.WARN, "the cache _head/vllm is gone")
    own = check.judge(CacheFacts("known", (gone,), used_before=("vllm",)))
    assert own.level is Level.OK, "the last good start was of a plan of this node's own"


@pytest.mark.parametrize("recorded", ["caches.", "caches.vllm"], ids=["all caches", "an earlier sparkd's fewer"])
@pytest.mark.parametrize(
    ("changed", "before"),
    [
        pytest.param({}, True, id="the same"),
        pytest.param({"model": "/models/other"}, False, id="another model"),
        pytest.param({"image.identity": "other"}, False, id="another image"),
        pytest.param({"caches.vllm": "/elsewhere"}, False, id="a cache elsewhere"),
    ],
)
def test_a_good_start_of_the_same_plan_shows_what_the_model_compiles(
    machine: Tree, changed: dict[str, str], before: bool, recorded: str
) -> None:
    check = compiling_check()
    machine.meminfo(MemTotal=121, MemFree=117, MemAvailable=117)
    values = {**dict(check.plan.shared), "image.identity": identity(machine), **changed}
    good = {key: text for key, text in values.items() if not key.startswith("caches.") or key.startswith(recorded)}
    machine.file(FILE.path, FILE.encode(LaunchHistory(good=good)))
    assert check.probe(Host(machine.root)).compiled_before is before


def test_a_plan_without_caches_reads_nothing(tree: Tree) -> None:
    check = replace(CHECK, plan=replace(PLAN, caches=()))
    assert check.judge(check.probe(Host(tree.root))).reason == "the recipe keeps none"


@pytest.fixture
def machine(tree: Tree) -> Tree:
    tree.dockerd()
    config = {"User": "1000:1000"}
    image = {"Id": f"sha256:{ID}", "Architecture": "arm64", "Os": "linux", "Config": config, "RootFS": {"Layers": []}}
    tree.docker(f"/images/{REF}/json", image)
    return tree


def record_good_start(tree: Tree, identity: str) -> None:
    values = {"image.identity": identity, "caches.vllm": "/root/.cache/vllm", "args.seed": "1"}
    tree.file(FILE.path, FILE.encode(LaunchHistory(good=values, good_caches=("vllm",))))


def identity(tree: Tree) -> str:
    return docker_image.image_identity(Host(tree.root).docker_reader(), REF) or ""


def test_probe_counts_this_images_caches_and_the_others(machine: Tree) -> None:
    machine.file(f"{caches.path(ID, 'vllm')}/a/b/kernel.so", "12345")
    machine.file(f"{caches.path(ID, 'vllm')}/top", "1")
    machine.file(f"{caches.path(OTHER, 'vllm')}/x", "123")
    machine.file(f"{caches.ROOT}/notes.txt", "no image's")
    machine.link(f"{caches.path(ID, 'vllm')}/loop", "..")
    record_good_start(machine, identity(machine))
    cache_facts = CHECK.probe(Host(machine.root))
    vllm, triton = cache_facts.caches
    assert vllm.files == 3
    assert vllm.bytes == 5 + 1 + 2
    assert triton.kind == "missing"
    assert cache_facts.user == "1000"
    assert cache_facts.used_before == ("vllm",)
    assert cache_facts.others == 1
    assert cache_facts.others_bytes == 3


def test_caches_that_the_last_good_start_had_not_filled_are_not_lost(machine: Tree) -> None:
    """The first start of all serves before anything is compiled."""
    machine.folder(caches.path(ID, "vllm")).chmod(0o777)
    values = {"image.identity": identity(machine), "caches.vllm": "/root/.cache/vllm"}
    history = LaunchHistory(tried=values)
    for filled, level in (((), Level.OK), (("vllm",), Level.WARN)):
        machine.file(FILE.path, FILE.encode(history.record_serving("boot", filled)))
        check = replace(CHECK, plan=replace(PLAN, caches=CACHES[:1]))
        assert check.judge(check.probe(Host(machine.root))).level is level


def test_another_image_s_good_start_used_no_cache_of_this_one(machine: Tree) -> None:
    record_good_start(machine, "of another image")
    assert CHECK.probe(Host(machine.root)).used_before == ()


def test_probe_without_docker_or_without_the_image(machine: Tree) -> None:
    (machine.root / f".sparkd/docker/images/{REF}/json.json").unlink()
    assert CHECK.probe(Host(machine.root)).image == "missing"
    (machine.root / "run/docker.pid").unlink()
    assert CHECK.probe(Host(machine.root)).image == "away"
