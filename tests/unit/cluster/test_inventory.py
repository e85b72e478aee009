"""What a node has to serve with: how it is read, bounded and served."""

import json

import pytest
from tests.tree import Tree
from tests.unit.agent_steps import running_steps, wait_and_join
from tests.unit.cluster.inventories import GOOD
from tests.unit.cluster_nodes import addresses, agent_under_test, settings
from tests.unit.nodes import node, reading
from tests.unit.plans import configured

from sparkd.agent.cluster.inventory import (
    CODEC,
    MOST_FOLDERS,
    MOST_MODELS,
    PATH,
    read_inventory,
)
from sparkd.base.host import Host
from sparkd.base.lib.http_client import HttpError

DESCRIPTION = {"Id": "sha256:" + "a" * 64, "RootFS": {"Layers": ["sha256:1"]}, "Config": {}}


def test_models_and_images_are_found_where_loaders_and_docker_have_them(tree: Tree) -> None:
    for path in ("plain", "org/nested", "models--o--n/snapshots/abc"):
        tree.file(f"/srv/models/{path}/config.json", "{}")
        tree.safetensors(f"/srv/models/{path}/model.safetensors")
    tree.file("/srv/models/broken/config.json", "{}")
    tree.file("/srv/models/broken/model.safetensors", "")
    tree.file("/srv/models/notes.txt", "x")
    tree.meminfo(MemTotal=128, MemFree=1, MemAvailable=1)
    tree.dockerd()
    tree.docker("/images/json", [{"RepoTags": ["i:1"], "RepoDigests": None}, {"RepoTags": None}, "rubbish"])
    tree.docker("/images/i:1/json", DESCRIPTION)
    inventory = read_inventory(configured(), Host(tree.root))
    assert {model.path: bool(model.fault) for model in inventory.models} == {
        "plain": False,
        "org/nested": False,
        "models--o--n/snapshots/abc": False,
        "broken": True,
    }
    assert [image.name for image in inventory.images] == ["i:1"]
    assert inventory.memory_bytes == 128 << 30
    assert inventory.unread == ()
    assert CODEC.decode(CODEC.encode(inventory).encode()) == inventory


def test_what_cannot_be_read_is_named(tree: Tree) -> None:
    inventory = read_inventory(configured(), Host(tree.root))
    assert [reason.partition(":")[0] for reason in inventory.unread] == ["models", "images", "memory"]


def test_a_folder_that_cannot_be_read_hides_no_other_model(tree: Tree) -> None:
    tree.file("/srv/models/z/config.json", "{}")
    tree.link("/srv/models/m", "x" * 300)  # ENAMETOOLONG, an error as those of a disk that fails
    inventory = read_inventory(configured(), Host(tree.root))
    assert [model.path for model in inventory.models] == ["z"]
    assert inventory.unread[0] == "models: /srv/models/m: File name too long"


def test_a_list_of_models_that_is_cut_names_its_limit(tree: Tree) -> None:
    for number in range(MOST_MODELS + 5):
        tree.file(f"/srv/models/m{number:03}/config.json", "{}")
    inventory = read_inventory(configured(), Host(tree.root))
    assert len(inventory.models) == MOST_MODELS
    assert f"models: there are {MOST_MODELS} or more" in inventory.unread


def test_the_files_of_a_download_cache_hide_no_model_and_a_search_that_is_cut_names_its_limit(tree: Tree) -> None:
    for name in "abc":
        for number in range(MOST_FOLDERS // 2):
            tree.file(f"/srv/models/models--o--{name}/blobs/{number}", "x")
        tree.file(f"/srv/models/models--o--{name}/snapshots/1/config.json", "{}")
    inventory = read_inventory(configured(), Host(tree.root))
    assert [model.path for model in inventory.models] == [f"models--o--{name}/snapshots/1" for name in "abc"]
    for number in range(MOST_FOLDERS):
        tree.file(f"/srv/models/data/{number}", "x")
    inventory = read_inventory(configured(), Host(tree.root))
    assert inventory.unread[0] == f"models: /srv/models: only the first {MOST_FOLDERS} names below it were looked at"


@pytest.mark.parametrize(
    "change",
    [
        {"models": [{"path": "m", "size_bytes": 1}] * (MOST_MODELS + 1)},
        {"node": "x" * 2000},
        {"follows": "yes"},
        {"allow": {"privileged": "rm -rf"}},
        {"memory_bytes": None},
        {"memory_bytes": 10**400},
        {"memory_bytes": -1},
        {"models": [{"path": "m", "size_bytes": 10**400}]},
    ],
)
def test_an_inventory_out_of_bounds_is_refused(change: dict[str, object]) -> None:
    fields = {**json.loads(CODEC.encode(GOOD)), **change}
    with pytest.raises(ValueError):
        CODEC.decode(json.dumps(fields).encode())


def test_an_inventory_that_can_not_be_read_is_refused_and_the_fault_is_logged(tree: Tree, port: int) -> None:
    with (
        agent_under_test(tree, 1, settings(addresses(2), port)) as worker,
        node("127.0.0.1", port=port) as head,
        reading("127.0.0.2", port) as reader,
        running_steps(worker, wait_and_join),
    ):
        tree.file("/node1/etc/sparkd/recipes")  # no folder
        with pytest.raises(HttpError, match="404"):
            head.loop.submit(reader.fetch(PATH)).result(5)
        assert any("cluster.server.failed reason=inventory: ConfigError" in line for line in worker.events.lines)
