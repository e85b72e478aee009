"""The tiny model: a random Llama of 1.5 million parameters in eight shards, made by the engine's own libraries."""

import shutil
from pathlib import Path

from . import cache, engine_image
from .command import run
from .tree import Tree

MAKER = Path(__file__).parent / "files/make-tiny"


def key() -> str:
    return cache.recipe_key(Path(__file__), MAKER, engine_image.key())


def archive() -> Path:
    return cache.artefact("tiny-model", key(), ".tar", build)


def build(target: Path) -> None:
    engine = engine_image.archive()
    with cache.scratch("tiny-model") as scratch:
        root = scratch / "root"
        root.mkdir()
        run("tar", "-C", root, "-I", "zstd", "-xpf", engine)
        (root / "make").mkdir()
        shutil.copy(MAKER, root / "make/make-tiny")
        Tree(root).run("python3", "/make/make-tiny", "/make/tiny", env={"HF_HUB_OFFLINE": "1"})
        run("chmod", "-R", "a+rX", root / "make/tiny")
        run("tar", "-C", root / "make", "--sort=name", "--mtime=@0", "-cf", target, "tiny")


if __name__ == "__main__":
    print(archive())
