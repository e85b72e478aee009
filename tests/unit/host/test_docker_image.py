"""An image as docker describes it: its labels, its architecture, and the digest of its own repository."""

import pytest
from tests.tree import Tree

from sparkd.base.host import Host, docker_image
from sparkd.base.lib.dockerd.reader import DockerError, DockerReader

ID = "0123456789abcdef" * 4
REF = "ghcr.io/x/vllm:1"
DIGEST = f"ghcr.io/x/vllm@sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("name", "digests", "digest"),
    [
        (REF, (DIGEST,), DIGEST),
        (f"{REF.partition(':')[0]}@sha256:{'b' * 64}", (DIGEST,), DIGEST),
        (REF, (f"sparkd/known-good@sha256:{'a' * 64}", DIGEST), DIGEST),
        ("docker.io/x/vllm:1", (f"x/vllm@sha256:{'a' * 64}",), f"x/vllm@sha256:{'a' * 64}"),
        ("localhost:5000/vllm", (f"localhost:5000/vllm@sha256:{'a' * 64}",), f"localhost:5000/vllm@sha256:{'a' * 64}"),
        (REF, (f"{DIGEST}; reboot",), ""),
        (REF, ("ghcr.io/x/vllm@sha256:1",), ""),
        (REF, (f"evil/vllm@sha256:{'a' * 64}",), ""),
        (REF, (), ""),
    ],
)
def test_the_digest_is_that_of_the_images_own_repository(
    tree: Tree, name: str, digests: tuple[str, ...], digest: str
) -> None:
    tree.docker_engine()
    answer = {"Id": f"sha256:{ID}", "Architecture": "", "Os": "", "Config": {}, "RepoDigests": list(digests)}
    tree.docker(f"/images/sha256:{ID}/json", answer)
    assert docker_image.read_digest(Host(tree.root), f"sha256:{ID}", name) == digest


def reader(tree: Tree, answer: object) -> DockerReader:
    tree.docker(f"/images/{REF}/json", answer)
    return Host(tree.root).docker_reader()


def test_of_an_images_labels_those_of_its_build_are_kept(tree: Tree) -> None:
    labels = {"org.opencontainers.image.revision": "4c1f", "api-key": "hidden", "com.nvidia.x": "a\nb" * 500}
    answer = {"Id": "sha256:1", "Architecture": "arm64", "Os": "linux", "Config": {"Labels": labels, "User": None}}
    image = docker_image.read_image(reader(tree, answer), REF)
    assert image is not None
    assert [key for key, _ in image.labels] == ["com.nvidia.x", "org.opencontainers.image.revision"]
    assert len(image.labels[0][1]) <= 200
    assert image.user == ""
    assert image.size_bytes == 0
    assert image.created == ""


@pytest.mark.parametrize("answer", [[], "x", {}, {"Id": 1}, {"Id": "sha256:1", "Architecture": "arm64", "Os": "linux"}])
def test_a_description_that_is_not_dockers_is_no_image(tree: Tree, answer: object) -> None:
    with pytest.raises(DockerError, match=REF):
        docker_image.read_image(reader(tree, answer), REF)
