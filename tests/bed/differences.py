"""What may differ between two nodes that were meant to be the same, made on one of them and undone."""

from collections.abc import Callable
from dataclasses import dataclass

from . import engine_image
from .pair import KEY_FILE, new_key
from .processes import wait_for
from .sparkd_node import SparkdNode

STATUS_SECONDS = 60.0
SHARD = "/srv/models/tiny/model-00003-of-00008.safetensors"
KEPT_IMAGE = "sparkd-test/kept:1"


@dataclass(frozen=True)
class Difference:
    """`status`: its text in STATUS= of both nodes. `row`: its line in the table of both journals."""

    name: str
    make: Callable[[SparkdNode], None]
    undo: Callable[[SparkdNode], None]
    status: str
    row: str = ""
    in_ci: tuple[str, ...] = ()
    """Sides on which every change is tested with it."""

    def await_status(self, one: SparkdNode) -> None:
        wait_for(lambda: self.status in one.status_text(), STATUS_SECONDS, f"{one.node.name} to say {self.status!r}")
        if self.row:
            shown = [line for line in one.node.journal(one.unit, "--since=-2min").splitlines() if "plan|" in line]
            assert any(self.row in line for line in shown), f"{one.node.name} shows no row of {self.row}: {shown}"


LONGER_HEADER = """
import sys
path, = sys.argv[1:]
with open(path, "rb") as file:
    content = file.read()
end = 8 + int.from_bytes(content[:8], "little")
with open(path, "wb") as file:
    file.write((end).to_bytes(8, "little") + content[8:end] + 8 * b" " + content[end:])
"""


def _no_shard(one: SparkdNode) -> None:
    one.node.run("mv", SHARD, "/root/kept.safetensors")


def _other_shard(one: SparkdNode) -> None:
    """As whole as before, and eight bytes longer: preflight sees nothing wrong with it."""
    one.node.run("cp", "-p", SHARD, "/root/kept.safetensors")
    one.node.run("python3", "-c", LONGER_HEADER, SHARD)


def _same_shard(one: SparkdNode) -> None:
    one.node.run("mv", "/root/kept.safetensors", SHARD)


def _other_image(one: SparkdNode) -> None:
    """Of the same name, with one more layer."""
    name = engine_image.NAME
    one.node.sh(
        f"docker tag {name} {KEPT_IMAGE} && docker create --name other {name} && "
        f"docker commit --change 'ENV OTHER=1' other {name} && docker rm other"
    )


def _same_image(one: SparkdNode) -> None:
    one.node.sh(f"docker tag {KEPT_IMAGE} {engine_image.NAME} && docker rmi {KEPT_IMAGE}")


def _other_flag(one: SparkdNode) -> None:
    one.node.write("/etc/sparkd/conf.d/other.toml", "[engine.args]\nmax-model-len = 256\n")


def _same_flag(one: SparkdNode) -> None:
    one.node.run("rm", "/etc/sparkd/conf.d/other.toml")


def _other_key(one: SparkdNode) -> None:
    one.node.sh(f"cp -p {KEY_FILE} /root/kept.key && cat > {KEY_FILE}", input=f"{new_key()}\n")


def _same_key(one: SparkdNode) -> None:
    one.node.run("cp", "-p", "/root/kept.key", KEY_FILE)


ALL = (
    Difference("a shard removed", _no_shard, _same_shard, "model-00003-of-00008.safetensors"),
    Difference("another shard", _other_shard, _same_shard, "model-00003-of-00008.safetensors", "model-00003"),
    Difference("another image", _other_image, _same_image, "differs: image", "image"),
    Difference(
        "another flag", _other_flag, _same_flag, "args.max-model-len is", "args.max-model-len", in_ci=("worker",)
    ),
    Difference("another key", _other_key, _same_key, "key", in_ci=("head",)),
)  # fmt: skip
