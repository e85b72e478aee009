"""The check that holds a node's plan against the rules, with the model and the script that it names."""

import json

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.lint_launches import BY_ROLE, GOOD
from tests.unit.plans import ALONE, WORKER, configured, plan
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level, Verdict, ok
from sparkd.agent.preflight.checks.plan_lint import PlanLint, is_doubtful, script_share
from sparkd.agent.preflight.runner import examine
from sparkd.base.host import Host
from sparkd.base.host.files import Files
from sparkd.base.plan.model import LaunchPlan

PLAN = replace(
    plan(WORKER),
    argv=("vllm", "serve", "/models/m", *(word for flag, text in GOOD.items() for word in (f"--{flag}", str(text)))),
    env=(),
    model_path="/srv/m",
    gpu_memory_utilization=0.9,
    kv_cache_tokens=612_341,
)
OWN = replace(PLAN, user_script="/root/s.sh", env=(("VLLM_WORKER_MULTIPROC_METHOD", "spawn"),))


def judged(tree: Tree, plan: LaunchPlan) -> Verdict:
    return PlanLint(plan).run(Host(tree.root))[1]


def test_the_plan_is_judged_with_the_model_that_it_names(tree: Tree) -> None:
    assert judged(tree, PLAN) == ok("nothing in the 6 flags of the plan is known to fail")
    tree.file("/srv/m/config.json", '{"max_position_embeddings": 4096}')
    expect(judged(tree, PLAN), Level.BLOCK, "allows 4096", hint="lower max-model-len")
    forked = replace(PLAN, env=(("VLLM_WORKER_MULTIPROC_METHOD", "fork"),))
    assert "ShmRingBuffer" in judged(tree, forked).reason


@pytest.mark.parametrize(
    ("keys", "is_fetched"),
    [
        ({}, True),
        ({"caches": {"hub": "/root/.cache/huggingface"}}, False),
        ({"container": {"volumes": ["/srv/hub:/root/.cache/huggingface/hub:ro"]}}, False),
    ],
)
def test_what_a_mount_of_the_plan_keeps_is_not_fetched_at_each_start(
    tree: Tree, keys: dict[str, object], *, is_fetched: bool
) -> None:
    made = plan(ALONE, configured(engine={"models_dir": "/srv/$share"}), args={"tokenizer": "org/m"}, **keys)
    verdict = judged(tree, made)
    assert ("--tokenizer names org/m" in verdict.reason) is is_fetched
    assert "$share" not in verdict.reason, "a folder of the node may have any name"


OWN_IMAGE, OTHER_IMAGE = f"r/fork@sha256:{'2c' * 32}", "vllm/vllm-openai:v0.32.0"


@pytest.mark.parametrize(
    ("image", "flag", "lacks"),
    [
        ("", "monokernel", "vLLM 0.29.0; it came with 0.33"),
        ("", "enable-bf16x3-router-gemm", ""),
        (OTHER_IMAGE, "monokernel", "vLLM 0.32.0; it came with 0.33"),
        (OTHER_IMAGE, "enable-bf16x3-router-gemm", "vLLM 0.32.0; it came with 0.26 and went with 0.30"),
    ],
)
def test_the_release_that_the_recipe_names_judges_the_recipes_own_image(
    tree: Tree, image: str, flag: str, lacks: str
) -> None:
    settings = configured(engine={"image": image})
    keys = {"image": {"ref": OWN_IMAGE, "vllm": "0.29"}, "args": {flag: True, "gpu-memory-utilization": 0.9}}
    verdict = judged(tree, plan(ALONE, settings, **keys))
    expect(verdict, Level.WARN if lacks else Level.OK, f"is no flag of {lacks}" if lacks else "nothing in the")


@pytest.mark.parametrize(
    ("image", "vllm", "script", "doubtful"),
    [
        (OWN_IMAGE, "", "", True),
        (OWN_IMAGE, "0.33", "", False),
        (OWN_IMAGE, "0.29", "", True),
        (OWN_IMAGE, "", "/root/s.sh", False),
        ("vllm/vllm-openai:v0.33.0", "", "", False),
        ("vllm/vllm-openai:nightly", "", "", True),
        ("vllm/vllm-openai:v0.33.0", "0.99", "", False),
    ],
)
def test_a_vllm_of_unknown_release_or_that_may_lack_a_flag_is_doubtful_unless_a_script_may_bring_another(
    image: str, vllm: str, script: str, *, doubtful: bool
) -> None:
    settings = configured(engine={"script": script})
    made = plan(ALONE, settings, image={"ref": image, "vllm": vllm}, args={"monokernel": True})
    assert is_doubtful(made) is doubtful


@pytest.mark.parametrize("python", ["python", "python3"])
def test_vllms_module_as_entrypoint_is_judged_as_vllm_serve(python: str) -> None:
    entrypoint = [python, "-m", "vllm.entrypoints.openai.api_server"]
    assert is_doubtful(plan(ALONE, image={"ref": OWN_IMAGE, "entrypoint": entrypoint}, args={"monokernel": True}))


PACKAGES = "/usr/local/lib/python3.12/dist-packages"


@pytest.mark.parametrize(
    ("target", "program", "env", "doubtful"),
    [
        (PACKAGES, "vllm", {}, False),
        (f"{PACKAGES}/vllm", "vllm", {}, False),
        (f"{PACKAGES}/vllm/engine/arg_utils.py", "vllm", {}, False),
        ("/usr/local/lib/python3.12", "vllm", {}, False),
        ("/usr/local", "vllm", {}, False),
        ("/usr/local/lib", "vllm", {}, False),
        ("/usr/lib", "vllm", {}, False),
        ("/opt/venv", "vllm", {}, False),
        ("/usr/local/share", "vllm", {}, True),
        (f"{PACKAGES}/b12x", "vllm", {}, True),
        ("/root/.cache/vllm", "vllm", {}, True),
        ("/opt/own", "/opt/own/bin/vllm", {}, False),
        ("/opt/own", "/opt/vllm/bin/vllm", {}, True),
        ("/opt/own", "vllm", {"PYTHONPATH": "/opt/own/lib:/x"}, False),
        ("/opt/own", "vllm", {"PATH": "/usr/bin:/opt/own/bin"}, False),
        ("/opt/own", "vllm", {"PATH": "/opt/own2/bin", "PYTHONPATH": ""}, True),
    ],
)
def test_no_plan_is_judged_by_the_images_own_vllm_where_a_mount_may_bring_another(
    tree: Tree, target: str, program: str, env: dict[str, str], *, doubtful: bool
) -> None:
    tree.file("/opt/own", "x")
    made = plan(
        ALONE,
        image={"ref": OWN_IMAGE, "entrypoint": [program, "serve"]},
        container={"volumes": [f"/opt/own:{target}:ro"]},
        args={"monokernel": True},
        env=env,
    )
    assert is_doubtful(made) is doubtful
    assert PlanLint(made).probe(Host(tree.root))._vllm.mounted is not doubtful


def test_an_entrypoint_that_may_bring_another_vllm_makes_no_plan_doubtful() -> None:
    inline = ["bash", "-c", 'pip install vllm==0.33.0; exec vllm serve "$@"']
    assert not is_doubtful(plan(ALONE, image={"ref": OWN_IMAGE, "entrypoint": inline}, args={"monokernel": True}))


def test_the_tag_judges_where_the_recipe_names_a_release_that_has_no_table(tree: Tree) -> None:
    keys = {"image": {"ref": OTHER_IMAGE, "vllm": "0.99"}, "args": {"monokernel": True, "gpu-memory-utilization": 0.9}}
    expect(judged(tree, plan(ALONE, **keys)), Level.WARN, "is no flag of vLLM 0.32.0")


def test_the_tag_judges_the_image_that_a_rollback_restores(tree: Tree) -> None:
    made = plan(ALONE, image={"ref": OTHER_IMAGE}, args={"monokernel": True, "gpu-memory-utilization": 0.9})
    expect(judged(tree, replace(made, image_id="sha256:1")), Level.WARN, "is no flag of vLLM 0.32.0")


@pytest.mark.parametrize("config", ["", "{", "[]", "[" * 100_000, "null", '"x"'])
def test_an_invalid_config_is_ignored(tree: Tree, config: str) -> None:
    tree.file("/srv/m/config.json", config)
    assert judged(tree, PLAN).level is Level.OK


@pytest.mark.parametrize(("gpus", "level"), [(1, Level.WARN), (2, Level.OK)])
def test_an_engine_may_see_all_gpus_of_its_node(tree: Tree, gpus: int, level: Level) -> None:
    assert judged(tree, replace(PLAN, env=(("CUDA_VISIBLE_DEVICES", "0,1"),), gpus=gpus)).level is level


@pytest.mark.parametrize(
    ("text", "level", "says"),
    [
        ('export FOO=1\nexec "$@"', Level.OK, "the 6 flags of the plan"),
        ("exec vllm serve /m --headless --gpu-memory-utilization 0.9", Level.OK, "the 2 flags of engine.script"),
        ("exec vllm serve /m --gpu-memory-utilization 0.9", Level.BLOCK, "no --headless"),
        ("exec vllm serve /m --headless", Level.WARN, "--gpu-memory-utilization is left out"),
        (BY_ROLE.replace("serve", "serve --gpu-memory-utilization 0.9"), Level.OK, "the 7 flags of engine.script"),
        (BY_ROLE.replace("serve", "serve --gpu-memory-utilization 0.93"), Level.WARN, "0.93: at most 0.912"),
        ("VLLM_WORKER_MULTIPROC_METHOD=fork vllm serve --headless", Level.WARN, "ShmRingBuffer"),
        ("vllm serve --headless --hf-overrides {'a':1} --gpu-memory-utilization 0.9", Level.BLOCK, "is no JSON"),
    ],
)
def test_what_the_own_script_starts_counts(tree: Tree, text: str, level: Level, says: str) -> None:
    tree.file("/root/s.sh", text)
    expect(judged(tree, OWN), level, says)


def test_a_variable_of_the_plan_may_hold_headless(tree: Tree) -> None:
    tree.file("/root/s.sh", "exec vllm serve /m --gpu-memory-utilization 0.9 $MORE")
    assert judged(tree, OWN).level is Level.BLOCK
    assert judged(tree, replace(OWN, env=(("MORE", "--headless --enforce-eager"),))).level is Level.OK


def test_the_share_is_that_of_the_script_alone_where_it_starts_the_engine(tree: Tree) -> None:
    serve, files = "exec vllm serve /m --gpu-memory-utilization 0.98\n", Files(str(tree.root))
    for text, share in ((serve, 0.98), ('exec "$@"\n', None), ("exec vllm serve /m\n", None)):
        tree.file(OWN.user_script, text)
        assert script_share(files, OWN) == share
    assert script_share(files, replace(OWN, user_script="/gone.sh")) is None


def test_a_missing_script_is_left_to_script_paths(tree: Tree) -> None:
    assert judged(tree, OWN).level is Level.OK
    tree.folder("/root/s.sh")
    assert judged(tree, OWN).level is Level.OK


def test_a_script_too_large_to_be_one_is_not_known(tree: Tree) -> None:
    tree.file("/root/s.sh", "x" * ((64 << 10) + 1))
    with pytest.raises(OSError, match="larger than"):
        judged(tree, OWN)


def test_evidence_holds_no_word_of_the_script(tree: Tree) -> None:
    tree.file("/root/s.sh", "exec vllm serve /m --headless --api-key do-not-print --gpu-memory-utilization 0.9")
    (finding,) = examine([PlanLint(OWN)], Host(tree.root))
    assert finding.facts["own_command"] is True
    assert "do-not-print" not in json.dumps(finding.facts) + finding.verdict.reason
