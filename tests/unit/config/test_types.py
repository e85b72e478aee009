"""References of images and addresses of nodes, as docker and the kernel compare them."""

import pytest
from pydantic import TypeAdapter, ValidationError
from tests.unit.clock import unstalled

from sparkd.base.config import types as t

IMAGE: TypeAdapter[str] = TypeAdapter(t.ImageOrEmpty)
ADDRESSES: TypeAdapter[tuple[str, ...]] = TypeAdapter(t.Addresses)
DIGEST = "sha256:" + "0a" * 32


@pytest.mark.parametrize(
    "image",
    ["", "i", "vllm-node", "vllm-node:latest", "a/b/c/d", "ghcr.io/eugr/vllm_node:v1.2-rc.3", "localhost:5000/x:_1",
     "10.0.0.1:5000/x", "[fe80::1]:5000/x", "Registry.Example.com/team/x__y-z:Tag", f"x@{DIGEST}", f"x:1@{DIGEST}",
     DIGEST, "nvcr.io/nvidia/vllm:25.11-py3", "a--b/c.d", "x:" + "a" * 128, "a" * 255],
)  # fmt: skip
def test_what_docker_takes_is_an_image(image: str) -> None:
    assert IMAGE.validate_python(image) == image


@pytest.mark.parametrize(
    "image",
    ["ghcr.io/Eugr/x", "vllm/VLLM-openai:latest", "X", "x:", "x:.1", "x:a b", "x:1:2", "x@sha256:abc",
     "x@md5:" + "0" * 32, "x@",
     f"x@{DIGEST.upper()}", "/x", "x/", "a//b", "a..b", "a___b", "-x", "x-", "x_", "https://ghcr.io/x", "x:-1",
     "x/:1", "x:" + "a" * 129, "a" * 256, "x y", "x\n", "é/x", "x:{tag}", "$IMAGE", "ghcr.io:port/x"],
)  # fmt: skip
def test_what_docker_refuses_is_none(image: str) -> None:
    with pytest.raises(ValidationError, match="must be an image"):
        IMAGE.validate_python(image)


def test_a_long_reference_is_judged_at_once() -> None:
    start = unstalled()
    for text in ("a" * 10**6, "a." * 250 + "!", "a-" * 250, "A" * 500 + "!", "a:" * 250):
        with pytest.raises(ValidationError):
            IMAGE.validate_python(text)
    assert unstalled() - start < 1


@pytest.mark.parametrize(
    "nodes",
    [["10.0.0.1", "10.0.0.1"], ["10.0.0.1", "::ffff:10.0.0.1"], ["::ffff:a00:1", "::ffff:10.0.0.1"],
     ["fd00::1", "FD00:0:0::1"], ["10.0.0.2", "10.0.0.1", "10.0.0.2"]],
)  # fmt: skip
def test_two_nodes_cannot_have_one_address(nodes: list[str]) -> None:
    with pytest.raises(ValidationError, match="twice"):
        ADDRESSES.validate_python(nodes)
