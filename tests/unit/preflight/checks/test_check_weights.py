"""The model's folder as its loader will find it: complete, whole, and seen by the container."""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.plans import plan
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level, Verdict
from sparkd.agent.preflight.checks.weights import ModelWeights, WeightsFacts
from sparkd.agent.preflight.container_links import Bind, find_outside
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.files import Files
from sparkd.base.host.model_folder import Flaw
from sparkd.base.plan.inputs import CheckInputs

FOLDER = "/srv/models/m"
BINDS = (Bind("/srv/models", "/models"),)
CHECK = ModelWeights(FOLDER, "/models/m", BINDS)
GOOD = WeightsFacts(
    folder=FOLDER,
    has_config=True,
    has_tokenizer=True,
    format=".safetensors",
    shards=2,
    size_bytes=6 << 30,
    indexed_bytes=6 << 30,
)


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        pytest.param(GOOD, Level.OK, "2 shards, 6.0 GiB, all whole", id="good"),
        pytest.param(replace(GOOD, shards=1), Level.OK, "1 shard, 6.0", id="one file"),
        pytest.param(replace(GOOD, indexed_bytes=None), Level.OK, "", id="an index without a sum"),
        pytest.param(replace(GOOD, indexed_bytes=7 << 30), Level.WARN, "index counts 7.0 GiB", id="another revision"),
        pytest.param(replace(GOOD, unfinished=("a.part", "b.part")), Level.WARN, "a.part (and 1 more)", id="download"),
        pytest.param(
            replace(GOOD, unreadable_path="a", image_user="vllm"), Level.WARN, "runs as vllm sudo chmod", id="closed"
        ),
        pytest.param(replace(GOOD, unreadable_path="a", image_user=""), Level.OK, "", id="root reads all"),
        pytest.param(replace(GOOD, unreadable_path="a"), Level.OK, "", id="without docker nobody knows"),
        pytest.param(replace(GOOD, has_tokenizer=False), Level.WARN, "no tokenizer", id="no tokenizer"),
        pytest.param(replace(GOOD, format="", shards=0, size_bytes=0), Level.BLOCK, "no weights", id="no weights"),
        pytest.param(replace(GOOD, flaws=(Flaw("a", "can't be read: x", unreadable=True),)), Level.UNKNOWN, "a can't"),
        pytest.param(
            replace(GOOD, format=".gguf", has_config=False, has_tokenizer=False, size_bytes=0, indexed_bytes=None),
            Level.OK,
            "2 files of weights",
            id="gguf by presence",
        ),
    ],
)
def test_a_fault_that_a_loader_would_fail_on_blocks_and_a_doubtful_one_warns(
    facts: WeightsFacts, level: Level, words: str
) -> None:
    expect(CHECK.judge(facts), level, text=words)


def test_weights_that_the_plan_does_not_load_may_be_missing() -> None:
    nothing = replace(GOOD, format="", shards=0)
    assert replace(CHECK, load_format="dummy").judge(replace(nothing, has_config=False)).level is Level.OK
    assert replace(CHECK, load_format="tensorizer").judge(nothing).level is Level.OK
    assert replace(CHECK, needs_tokenizer=False).judge(replace(GOOD, has_tokenizer=False)).level is Level.OK


def model(tree: Tree, *shards: str, folder: str = FOLDER) -> None:
    tree.file(f"{folder}/config.json", "{}")
    tree.file(f"{folder}/tokenizer.json", "{}")
    for shard in shards:
        tree.safetensors(f"{folder}/{shard}")
    if len(shards) > 1:
        weight_map = {f"layer.{number}": shard for number, shard in enumerate(shards)}
        tree.file(f"{folder}/{INDEX}", json.dumps({"metadata": {"total_size": 32}, "weight_map": weight_map}))


A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def judged(tree: Tree, check: ModelWeights = CHECK) -> Verdict:
    return check.run(Host(tree.root))[1]


def at(tree: Tree, name: str) -> Path:
    return tree.path(f"{FOLDER}/{name}")


def test_a_whole_model_is_good(tree: Tree) -> None:
    model(tree, A, B)
    facts, verdict = CHECK.run(Host(tree.root))
    assert verdict.level is Level.OK
    assert facts.shards == 2
    assert facts.indexed_bytes == 32
    assert facts.size_bytes == sum(at(tree, shard).stat().st_size for shard in (A, B))


def test_one_file_needs_no_index(tree: Tree) -> None:
    model(tree, "model.safetensors")
    assert judged(tree).level is Level.OK


def dangling(tree: Tree) -> None:
    at(tree, B).unlink()
    tree.link(f"{FOLDER}/{B}", "../../../blobs/0")


def sized(size: int) -> Callable[[Tree], object]:
    return lambda tree: os.truncate(at(tree, B), size)


def grown(size: int) -> Callable[[Tree], object]:
    return lambda tree: os.truncate(at(tree, B), at(tree, B).stat().st_size + size)


def zeros(size: int) -> Callable[[Tree], object]:
    return lambda tree: os.truncate(tree.file(f"{FOLDER}/{B}"), size)


def holding(name: str, text: str = "") -> Callable[[Tree], object]:
    return lambda tree: tree.file(f"{FOLDER}/{name}", text)


POINTER = "version https://git-lfs.github.com/spec/v1\n"


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        pytest.param(lambda tree: at(tree, B).unlink(), f"{B} is missing", id="missing"),
        pytest.param(dangling, f"{B} is a link to nothing", id="dangling"),
        pytest.param(sized(0), f"{B} is empty", id="empty"),
        pytest.param(sized(5), f"{B} is cut off in its header", id="half a length"),
        pytest.param(sized(20), f"{B} is cut off in its header", id="half a header"),
        pytest.param(grown(-1), f"{B} is cut off:", id="cut"),
        pytest.param(grown(1), "its header says", id="too long"),
        pytest.param(zeros(99), "not in the safetensors", id="zeros"),
        pytest.param(zeros(8), "not in the safetensors", id="8 zeros"),
        pytest.param(holding(B, "<html>no</html>"), "not in the safetensors", id="a page"),
        pytest.param(holding(A, POINTER), f"{A} is a git-lfs pointer, not the file git -C {FOLDER} lfs pull"),
        pytest.param(holding("config.json", "{"), "config.json is no JSON", id="half a config"),
        pytest.param(holding("config.json", "[" * 99999), "is no JSON", id="deep config"),
        pytest.param(holding("tokenizer.json"), "tokenizer.json is empty", id="tokenizer"),
        pytest.param(lambda tree: at(tree, "config.json").unlink(), "has no config.json", id="no config"),
        pytest.param(holding(INDEX, '{"weight_map": {"a": "'), "index.json is cut off", id="half an index"),
        pytest.param(holding(INDEX, "{}"), "names no shards", id="no index"),
        pytest.param(holding(INDEX, '{"a": "../b.safetensors"}'), "../b.safetensors is outside of the model's folder"),
        pytest.param(holding(INDEX, '{"a": "b\0.safetensors"}'), "b\\x00.safetensors is outside of the model's folder"),
    ],
)
def test_a_model_that_the_loader_would_fail_on_blocks(tree: Tree, cause: Callable[[Tree], object], words: str) -> None:
    model(tree, A, B)
    cause(tree)
    expect(judged(tree), Level.BLOCK, text=words)


def test_without_an_index_the_names_say_how_many_shards_there_are(tree: Tree) -> None:
    model(tree, A, B)
    at(tree, INDEX).unlink()
    assert judged(tree).level is Level.OK
    at(tree, A).unlink()
    assert f"{A} is missing" in judged(tree).reason


def test_one_good_set_of_shards_is_enough(tree: Tree) -> None:
    model(tree, A, B)
    at(tree, A).unlink()
    tree.safetensors(f"{FOLDER}/consolidated.safetensors")
    assert judged(tree).level is Level.OK, "Mistral's own weights, beside the index of Hugging Face's"


@pytest.mark.parametrize(
    "name",
    [f"{A}.incomplete", f".cache/huggingface/download/{A}.0a.incomplete", f".{A}.x81bQa", "model.part", f"{A}.aria2"],
)
def test_a_download_that_is_not_finished_warns(tree: Tree, name: str) -> None:
    model(tree, A, B)
    tree.file(f"{FOLDER}/{name}", "x")
    assert judged(tree).level is Level.WARN


def test_a_download_beside_a_missing_shard_is_named_with_it(tree: Tree) -> None:
    model(tree, A, B)
    at(tree, B).rename(at(tree, f"{B}.incomplete"))
    verdict = judged(tree)
    expect(verdict, Level.BLOCK, f"{B} is missing")
    assert f"{B}.incomplete" in verdict.reason


HUB = "/srv/models/models--org--m"
SNAPSHOT = f"{HUB}/snapshots/abc"
OF_SNAPSHOT = ModelWeights(SNAPSHOT, "/models/models--org--m/snapshots/abc", BINDS)


def cached(tree: Tree) -> None:
    """As Hugging Face's library keeps a model."""
    tree.file(f"{HUB}/refs/main", "abc")
    for number, name in enumerate(("config.json", "tokenizer.json", "model.safetensors")):
        if name.endswith("json"):
            tree.file(f"{HUB}/blobs/{number}", "{}")
        else:
            tree.safetensors(f"{HUB}/blobs/{number}")
        tree.link(f"{SNAPSHOT}/{name}", f"../../blobs/{number}")


def test_a_snapshot_of_the_cache_is_a_model_and_the_cache_is_none(tree: Tree) -> None:
    cached(tree)
    assert judged(tree, OF_SNAPSHOT).level is Level.OK
    whole_cache = ModelWeights(HUB, "/models/models--org--m", BINDS)
    expect(judged(tree, whole_cache), Level.BLOCK, hint=f"extend model.path to {SNAPSHOT}")


def test_a_blob_that_is_gone_or_not_finished_is_seen(tree: Tree) -> None:
    cached(tree)
    tree.path(f"{HUB}/blobs/2").rename(tree.path(f"{HUB}/blobs/2.incomplete"))
    verdict = judged(tree, OF_SNAPSHOT)
    expect(verdict, Level.BLOCK, "model.safetensors is a link to nothing")
    assert "2.incomplete" in verdict.reason


def test_a_snapshot_that_is_mounted_alone_has_no_blobs_in_the_container(tree: Tree) -> None:
    cached(tree)
    alone = ModelWeights(SNAPSHOT, SNAPSHOT, (Bind(SNAPSHOT, SNAPSHOT),))
    expect(judged(tree, alone), Level.BLOCK, f"a link of the model leads to {HUB}/blobs/0")
    with_blobs = replace(alone, binds=(*alone.binds, Bind(f"{HUB}/blobs", f"{HUB}/blobs")))
    assert judged(tree, with_blobs).level is Level.OK


@pytest.mark.parametrize(
    ("target", "outside"),
    [
        pytest.param("/mnt/nvme/m", "/mnt/nvme/m", id="absolute, elsewhere"),
        pytest.param("/srv/models/real", "/srv/models/real", id="absolute, within: the container has it as /models"),
        pytest.param("real", "", id="relative, within"),
        pytest.param("../../mnt/nvme/m", "/mnt/nvme/m", id="relative, out"),
        pytest.param("/models/real", "", id="as the container has it"),
        pytest.param("m", "/models/m", id="a circle"),
    ],
)
def test_links_are_followed_as_the_container_follows_them(tree: Tree, target: str, outside: str) -> None:
    tree.folder("/srv/models/real")
    tree.link(FOLDER, target)
    assert find_outside(Files(str(tree.root)), BINDS, "/models/m") == outside


def test_a_circle_in_a_containers_path_is_named_by_its_link(tree: Tree) -> None:
    tree.link("/srv/m/config.json", "tokenizer.json")
    tree.link("/srv/m/tokenizer.json", "config.json")
    outside = find_outside(Files(str(tree.root)), [Bind("/srv/m", "/models")], "/models/sub/../config.json")
    assert outside in ("/models/config.json", "/models/tokenizer.json")


def test_a_mounts_own_source_may_be_a_link(tree: Tree) -> None:
    model(tree, A, B, folder="/mnt/nvme/m")
    tree.link("/srv/models", "/mnt/nvme")
    assert judged(tree).level is Level.OK


def test_other_formats_are_judged_by_presence(tree: Tree) -> None:
    tree.file(f"{FOLDER}/m-Q4.gguf", "")
    assert judged(tree).reason == "1 file of weights"
    tree.file(f"{FOLDER}/config.json", "{}")
    tree.file(f"{FOLDER}/vocab.json", "{}")
    tree.file(f"{FOLDER}/pytorch_model.bin", "x")
    assert judged(tree).level is Level.OK


def test_a_load_format_of_its_own_is_judged_by_presence(tree: Tree) -> None:
    model(tree, A, B)
    os.truncate(at(tree, A), 3)
    assert judged(tree, replace(CHECK, load_format="sharded_state")).level is Level.OK
    assert judged(tree, replace(CHECK, load_format="fastsafetensors")).level is Level.BLOCK


@pytest.mark.parametrize("name", ["merges.txt", "vocab.json", "vocab.txt"])
def test_what_a_tokenizer_json_holds_already_may_be_empty_beside_it(tree: Tree, name: str) -> None:
    model(tree, A, B)
    tree.file(f"{FOLDER}/{name}")
    assert judged(tree).level is Level.OK
    at(tree, "tokenizer.json").unlink()
    assert f"{name} is empty" in judged(tree).reason


def test_a_folder_that_is_missing_or_empty_is_for_script_paths_to_say(tree: Tree) -> None:
    assert judged(tree).level is Level.OK
    tree.folder(FOLDER)
    assert judged(tree).level is Level.OK


def test_odd_content_never_raises(tree: Tree) -> None:
    model(tree, A, B)
    tree.folder(f"{FOLDER}/tokenizer.json.d")
    at(tree, "tokenizer.json").unlink()
    tree.folder(f"{FOLDER}/tokenizer.json")
    at(tree, A).unlink()
    os.mkfifo(at(tree, A))
    verdict = judged(tree)
    expect(verdict, Level.BLOCK, f"{A} is no file")
    assert "tokenizer.json is a folder, not a file" in verdict.reason


def check_of_plan(**keys: object) -> ModelWeights:
    return ModelWeights.from_inputs(CheckInputs(plan(**keys), Settings()))


def test_the_plan_says_where_the_model_is_and_how_it_is_loaded() -> None:
    check = check_of_plan(args={"load-format": "dummy"})
    assert check.folder == FOLDER
    assert check.container_path == "/models/m"
    assert check.load_format == "dummy"
    assert check.needs_tokenizer


def test_the_download_of_missing_files_is_of_the_plans_own_model(tree: Tree) -> None:
    """A folder of no plan has a placeholder."""
    model(tree, A)
    check = check_of_plan(model={"path": "m", "repo": "org/b", "revision": "v1"})
    expect(judged(tree, check), Level.BLOCK, text=f"sudo sparkd model pull org/b --revision v1 --to {FOLDER}, or")
    expect(judged(tree), Level.BLOCK, text=f"sudo sparkd model pull ORGANISATION/NAME --to {FOLDER}, or")


def test_a_model_whose_config_is_elsewhere_needs_none_in_its_folder() -> None:
    no_config = replace(GOOD, has_config=False)
    assert check_of_plan(args={"hf-config-path": "/models/x"}).judge(no_config).level is Level.OK


def test_the_time_grows_with_the_shards_and_not_with_the_weights(tree: Tree) -> None:
    """As in DeepSeek-V4-Flash: 46 shards, some 1500 tensors in each, an index that names them all."""
    shards = [f"model-{number:05}-of-00046.safetensors" for number in range(1, 47)]
    names = [f"model.layers.{number}.ffn.experts.{number}.w.weight_scale_inv" for number in range(1500)]
    tensor = {"dtype": "F8_E4M3", "shape": [1440, 1500]}
    ends = {name: {**tensor, "data_offsets": [i * 2_160_000, (i + 1) * 2_160_000]} for i, name in enumerate(names)}
    header = json.dumps(ends).encode()
    for shard in shards:
        real = tree.file(f"{FOLDER}/{shard}")
        real.write_bytes(len(header).to_bytes(8, "little") + header)
        os.truncate(real, 8 + len(header) + 1500 * 2_160_000)
    weight_map = {f"{shard[6:11]}.{name}": shard for shard in shards for name in names}
    tree.file(f"{FOLDER}/model.safetensors.index.json", json.dumps({"metadata": {}, "weight_map": weight_map}))
    tree.file(f"{FOLDER}/config.json", "{}")
    began = time.process_time()
    facts = CHECK.probe(Host(tree.root))
    took = time.process_time() - began
    assert facts.shards == 46
    assert facts.flaws == ()
    assert took < 0.2, f"{took:.3f} s of CPU"


def test_the_command_for_files_that_are_not_for_all_to_read_opens_those_of_a_download_cache_too(tree: Tree) -> None:
    """There a model's folder has links alone."""
    blob, cache = tree.file("/m/models--a--tiny/blobs/77", "{}", 0o600), tree.path("/m/models--a--tiny")
    snapshot = tree.folder("/m/models--a--tiny/snapshots/0a1b")
    (snapshot / "config.json").symlink_to("../../blobs/77")
    for folder in (snapshot, cache):
        blob.chmod(0o600)
        hint = CHECK.judge(replace(GOOD, folder=str(folder), unreadable_path="config.json", image_user="vllm")).hint
        subprocess.run(shlex.split(hint.removeprefix("sudo ")), check=True)
        assert blob.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("folder", "opened"),
    [
        ("/m/models--a--b/snapshots/0a1b", "/m/models--a--b"),
        ("/m/models--a--b/snapshots/0a1b/UD-Q4", "/m/models--a--b"),
        ("/home/anna/snapshots/qwen3", "/home/anna/snapshots/qwen3"),
        ("/home/anna/snapshots/qwen3/UD-Q4", "/home/anna/snapshots/qwen3/UD-Q4"),
    ],
)
def test_nothing_beside_the_model_is_opened_to_all(folder: str, opened: str) -> None:
    verdict = CHECK.judge(replace(GOOD, folder=folder, unreadable_path="config.json", image_user="vllm"))
    assert verdict.hint == f"sudo chmod -R a+rX {opened}"


@pytest.mark.parametrize("closed", ["", A, "config.json"])
def test_what_only_its_owner_may_read_is_held_against_the_images_user(tree: Tree, closed: str) -> None:
    model(tree, A, B)
    at(tree, closed).chmod(0o750)
    tree.dockerd()
    image = {"Id": "sha256:0", "Architecture": "arm64", "Os": "linux", "Config": {"User": "vllm:vllm"}}
    tree.docker("/images/img/json", image)
    check = replace(CHECK, image="img")
    closed_path = f"{FOLDER}/{closed}".rstrip("/")
    expect(judged(tree, check), Level.WARN, f"{closed_path} is not for everybody to read, and the image runs as vllm")
    at(tree, closed).chmod(0o755)
    assert check.probe(Host(tree.root)).image_user is None, "docker is not read without need"


def test_an_index_that_the_loader_does_not_heed_is_none_of_its_shards(tree: Tree) -> None:
    model(tree, "model.safetensors")
    tree.file(f"{FOLDER}/text_encoder.safetensors.index.json", '{"weight_map": {"a": "gone.safetensors"}}')
    expect(judged(tree), Level.OK, "1 shard,")
    tree.file(f"{FOLDER}/consolidated.safetensors.index.json", '{"weight_map": {"a": "gone.safetensors"}}')
    assert judged(tree).level is Level.OK, "Mistral's own format is not all that the folder has"
    at(tree, "model.safetensors").unlink()
    assert judged(tree).level is Level.BLOCK


@pytest.mark.parametrize("revision", ["", "gone", "a\0b"])
def test_a_download_cache_without_a_download_says_what_the_path_lacks(tree: Tree, revision: str) -> None:
    tree.file(f"{FOLDER}/refs/main", revision)
    at(tree, "snapshots").mkdir()
    expect(judged(tree), Level.BLOCK, hint=f"extend model.path to {FOLDER}/snapshots/REVISION")
