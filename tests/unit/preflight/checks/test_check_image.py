"""The plan's image: whether it is here, for this machine, what its recipe asserts, and how to get it."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.known_good_entries import known_good_entry
from tests.unit.plans import plan
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.docker import EngineImage, ImageFacts
from sparkd.base.host import Host, docker_image
from sparkd.base.plan.image_asserts import render_asserts
from sparkd.base.state import known_good
from sparkd.base.state.launch_history import FILE, AssertResult, LaunchHistory

ID = "0123456789abcdef" * 4
REF = "ghcr.io/x/vllm:1"
IMAGE = docker_image.Image(f"sha256:{ID}", "arm64", "2026-05-20T03:11:52Z", 3 << 30, "", (), (), ())


def image_check(ref: str = REF, *asserts: str, build: str = "") -> EngineImage:
    return EngineImage(replace(plan(), image=ref, asserts=asserts, image_build=build))


@pytest.mark.parametrize(
    ("facts", "level", "says"),
    [
        (ImageFacts(REF, (), "known", "arm64", IMAGE), Level.OK, "0123456789ab, 3.0 GiB, built 2026-05-20"),
        (ImageFacts(REF, (), "known", "arm64", None), Level.BLOCK, f"image {REF} is not on this node"),
        (ImageFacts(REF, (), "known", "amd64", IMAGE), Level.BLOCK, "is for arm64, and this machine is amd64"),
        (ImageFacts(REF, (), "known", "arm64", replace(IMAGE, architecture="")), Level.OK, "3.0 GiB"),
        (ImageFacts(REF, (), "away"), Level.SKIPPED, "docker is away"),
        (ImageFacts(REF, (), "HTTP 500"), Level.UNKNOWN, "HTTP 500"),
    ],
)
def test_an_image_must_be_here_and_for_this_machine(facts: ImageFacts, level: Level, says: str) -> None:
    expect(image_check().judge(facts), level, says)


@pytest.mark.parametrize(
    ("ref", "build", "get"),
    [
        (REF, "", f"sudo docker pull {REF}"),
        ("account/vllm:1", "", "sudo docker pull account/vllm:1"),
        (REF, "make image", "make image"),
        ("vllm-node-dsv4", "./build-and-copy.sh", "./build-and-copy.sh"),
        (f"ubuntu@sha256:{'a' * 64}", "make image", f"sudo docker pull ubuntu@sha256:{'a' * 64}"),
        ("vllm-node-dsv4", "", "build it (no registry has a name without an account)"),
    ],
)
def test_a_missing_image_is_pulled_or_built_by_a_person(ref: str, build: str, get: str) -> None:
    verdict = image_check(ref, build=build).judge(ImageFacts(ref, (), "known", "arm64", None))
    assert verdict.hint == f"{get}, or sparkd image sync on a node that has it"


def test_the_result_of_an_images_assertions_is_read(tree: Tree) -> None:
    tree.dockerd()
    tree.docker("/version", {"Arch": "arm64"})
    tree.docker(f"/images/{REF}/json", {"Id": "sha256:1", "Architecture": "arm64", "Os": "linux", "Config": {}})
    result = AssertResult("no deep_gemm", 1.0, "")
    tree.file(FILE.path, FILE.encode(LaunchHistory().record_asserts("sha256:1", render_asserts(["true"]), result)))
    host = Host(tree.root)
    assert image_check(REF, "true").run(host)[0].checked == result
    assert image_check(REF, "false").run(host)[0].checked is None
    assert image_check().run(host)[1].level is Level.OK


def test_an_image_that_went_by_its_id_can_not_be_pulled() -> None:
    verdict = image_check("sha256:e").judge(ImageFacts("sha256:e", (), "known", "arm64", None))
    assert "docker pull" not in verdict.hint
    assert "sparkd rollback" in verdict.hint


def record_served(tree: Tree, values: dict[str, str], digest: str) -> None:
    """A docker that answers, and the record of an image that served."""
    tree.docker_engine()
    served = known_good_entry(image_id=f"sha256:{ID}", image_digest=digest)
    served = replace(served, facts=replace(served.facts, values=values))
    tree.file(known_good.FILE.path, known_good.FILE.encode(known_good.KnownGood((served,))))


DIGEST, SERVED = f"ghcr.io/x/vllm@sha256:{'a' * 64}", "the one that served: sudo docker"


@pytest.mark.parametrize(
    ("ref", "known", "here", "hint"),
    [
        (REF, DIGEST, False, f"{SERVED} pull {DIGEST} && sudo docker tag {DIGEST} {REF}; or another: "),
        (REF, "", False, f"sudo docker pull {REF}"),
        (REF, DIGEST, True, f"{SERVED} tag sha256:{ID} {REF}; or another: "),
        (f"sha256:{ID}", DIGEST, False, f"{SERVED} pull {DIGEST}; or another: "),
        ("ghcr.io/x/vllm:2", DIGEST, True, "sudo docker pull ghcr.io/x/vllm:2"),
    ],
)
def test_of_a_missing_image_the_one_that_served_is_named(
    tree: Tree, ref: str, known: str, here: bool, hint: str
) -> None:
    record_served(tree, {"unchecked.image": REF}, known)
    if here:
        tree.docker(f"/images/sha256:{ID}/json", {"Id": f"sha256:{ID}", "Architecture": "", "Os": "", "Config": {}})
    verdict = image_check(ref).run(Host(tree.root))[1]
    assert verdict.level is Level.BLOCK
    assert verdict.hint.startswith(hint)


def test_an_image_that_a_digest_pins_is_not_replaced_by_the_one_that_served(tree: Tree) -> None:
    record_served(tree, {"image": DIGEST}, DIGEST)
    hint = f"sudo docker pull {DIGEST}, or sparkd image sync on a node that has it"
    expect(image_check(DIGEST).run(Host(tree.root))[1], Level.BLOCK, hint=hint)


@pytest.mark.parametrize(
    ("name", "level"), [("arm64", Level.OK), ("aarch64", Level.OK), ("", Level.OK), ("x86_64", Level.BLOCK)]
)
def test_an_architecture_has_more_than_one_name(tree: Tree, name: str, level: Level) -> None:
    tree.docker_engine()
    tree.docker(f"/images/{REF}/json", {"Id": "sha256:1", "Architecture": name, "Os": "linux", "Config": None})
    assert image_check().run(Host(tree.root))[1].level is level


def test_probe_lists_the_assertions_of_the_script(tree: Tree) -> None:
    tree.docker_engine()
    facts = image_check(REF, "1 line(s) of /a match b").probe(Host(tree.root))
    assert facts == ImageFacts(REF, ("1 line(s) of /a match b",), "known", "arm64", None)
