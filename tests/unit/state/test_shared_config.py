"""Which files of a head go with its configuration."""

import threading
import time
from hashlib import sha256
from pathlib import Path

from tests.tree import Tree
from tests.unit.cluster_nodes import addresses, machine, settings
from tests.unit.plans import shipped

from sparkd.base.host.files import Files
from sparkd.base.recipes.reach import HEAD_FILES
from sparkd.base.state.shared_config import make_shared, read_shareable


def test_files_of_the_head_come_with_its_recipe(tree: Tree, port: int) -> None:
    tree.file("/node0/etc/t.jinja", "{{ x }}", 0o644)
    tree.file("/node0/etc/private", "secret", 0o600)
    tree.file("/node0/etc/run.sh", "exec vllm", 0o700)
    head = machine(tree, 0)
    recipe = shipped("tiny-cpu-pair")
    volumes = [f"/etc/{name}:/x/{name}:ro" for name in ("t.jinja", "private", "missing")]
    spec = type(recipe.container).model_validate({"volumes": volumes})
    shared = make_shared(
        settings(addresses(2), port), recipe.model_copy(update={"container": spec}), "", "/etc/run.sh", head.files
    )
    assert {path: bytes(content) for path, content in shared.files.items()} == {
        "/etc/run.sh": b"exec vllm",
        "/etc/t.jinja": b"{{ x }}",
    }
    sources = [volume.source for volume in shared.recipe_here(None).container.volumes]
    assert sources == [f"{HEAD_FILES}/{sha256(b'{{ x }}').hexdigest()}", "/etc/private", "/etc/missing"]


def test_no_private_file_is_sent_where_a_user_exchanges_a_public_one_for_it_during_the_read(tmp_path: Path) -> None:
    """Its facts and its content are of one file, whatever the name leads to by then."""
    (tmp_path / "public").write_text("public")
    private = tmp_path / "private"
    private.write_text("private")
    private.chmod(0o600)
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            for target in ("public", "private"):
                (tmp_path / "new").symlink_to(target)
                (tmp_path / "new").replace(tmp_path / "link")

    (tmp_path / "link").symlink_to("public")
    swapping = threading.Thread(target=swap)
    swapping.start()
    deadline, sent = time.monotonic() + 0.5, set[bytes | None]()
    while time.monotonic() < deadline:
        sent.add(read_shareable(Files(), str(tmp_path / "link"), any_mode=False))
    ended.set()
    swapping.join()
    assert b"public" in sent and b"private" not in sent
