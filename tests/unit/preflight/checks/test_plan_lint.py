"""The rules of plan-lint, one by one, and the check that holds a node's plan against them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.commands import sparkd

from sparkd.host import Host
from sparkd.plan.model import Cache, LaunchPlan, Node
from sparkd.preflight.check import Level, Verdict
from sparkd.preflight.checks.plan_lint import SCRIPT_LIMIT_BYTES, PlanLint
from sparkd.recipes.schema import Container, Volume
from sparkd.vllm.command_line import first_values
from sparkd.vllm.lint import predicates, rules, script
from sparkd.vllm.lint.engine import Launch, ModelLimits, parse_limits
from sparkd.vllm.lint.script import Place

GOOD: dict[str, str | None] = {
    "gpu-memory-utilization": "0.90",
    "max-model-len": "131072",
    "max-num-seqs": "8",
    "max-num-batched-tokens": "16384",
    "compilation-config": '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}',
    "speculative-config": '{"method":"deepseek_mtp","num_speculative_tokens":2}',
}
LAUNCH = Launch(
    GOOD,
    kept=("/root/.cache/vllm",),
    pool_tokens=612_341,
    model=ModelLimits("deepseek_v4", 1_048_576),
)
DRAFTS = '{"method":"%s","num_speculative_tokens":%s}'


def seen(launch: Launch, **flags: str | None) -> list[str]:
    said = {name.replace("_", "-"): text for name, text in flags.items()}
    return found(replace(launch, flags={**launch.flags, **said}))


def found(launch: Launch) -> list[str]:
    return [one.rule for one in rules.find_issues(launch)]


def test_what_is_known_to_serve_well_is_good() -> None:
    assert rules.find_issues(LAUNCH) == ()
    assert rules.find_issues(Launch({}, gpu=False)) == ()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"compilation_config": '{"cudagraph_mode": FULL'}, ["json"]),
        ({"compilation_config": "'{}'"}, ["json"]),
        ({"compilation_config": "3"}, []),
        ({"compilation_config": "true"}, ["json"]),
        ({"compilation_config": None}, []),
        ({"speculative_config": "3"}, ["json"]),
        ({"speculative_config": "{“method”:“mtp”}"}, ["json"]),
        ({"hf_overrides": "my.module.function"}, []),
        ({"hf_overrides": '{"a": 1'}, ["json"]),
        ({"reasoning_config": "[]"}, ["json"]),
        ({"reasoning_config": "[" * 100_000}, ["json"]),
        ({"kv_transfer_config": ""}, []),
        ({"kv_transfer_config": '{"a": 80m, "b": "x 1k"}'}, []),
        ({"kv_transfer_config": '{"a": 80x}'}, ["json"]),
        ({"override_generation_config": '{"temperature":0.0}'}, []),
        ({"default_chat_template_kwargs": "thinking=true", "reasoning_config": "x"}, ["json", "json"]),
        ({"prefix_caching": None}, ["misnamed-flag"]),
        ({"enable_prefix_caching": None}, []),
        ({"disable_log_requests": None, "rope_scaling": "{}"}, ["misnamed-flag", "misnamed-flag"]),
        ({"gpu_memory_utilization": "0.912"}, []),
        ({"gpu_memory_utilization": "0.92"}, ["high-memory-share"]),
        ({"gpu_memory_utilization": "0.95"}, ["high-memory-share"]),
        ({"gpu_memory_utilization": "0.96"}, ["memory-share"]),
        ({"gpu_memory_utilization": "nan"}, []),
        ({"gpu_memory_utilization": "much"}, []),
        ({"max_num_batched_tokens": "16384", "no_enable_chunked_prefill": None}, ["unchunked-prefill"]),
        ({"max_num_batched_tokens": "131072", "no_enable_chunked_prefill": None}, []),
        ({"max_num_batched_tokens": "7"}, ["batch"]),
        ({"max_num_batched_tokens": "8"}, []),
        ({"max_model_len": "612341", "max_num_seqs": "1"}, []),
        ({"max_model_len": "612342", "max_num_seqs": "1"}, ["pool-length"]),
        ({"max_model_len": "1048577", "max_num_seqs": "1"}, ["model-length", "pool-length"]),
        ({"max_num_seqs": "18"}, []),
        ({"max_num_seqs": "19"}, ["pool-sequences"]),
        ({"enforce_eager": None}, ["eager"]),
        ({"enforce_eager": None, "compilation_config": '{"cudagraph_mode":"none"}'}, []),
        ({"speculative_config": DRAFTS % ("deepseek_mtp", 3)}, ["drafts"]),
        ({"speculative_config": DRAFTS % ("mtp", 3)}, ["drafts"]),
        ({"speculative_config": DRAFTS % ("mtp", '"3"')}, []),
        ({"speculative_config": DRAFTS % ("dspark", 5)}, []),
        ({"speculative_config": DRAFTS % ("dspark", 6)}, ["drafts"]),
        ({"speculative_config": DRAFTS % ("eagle3", 7)}, []),
    ],
)
def test_flags(flags: dict[str, str | None], expected: list[str]) -> None:
    assert seen(LAUNCH, **flags) == expected


def test_a_left_out_share_of_memory_is_vllms_own_unless_the_cache_has_a_size() -> None:
    flags = {name: text for name, text in GOOD.items() if name != "gpu-memory-utilization"}
    assert seen(replace(LAUNCH, flags=flags)) == ["high-memory-share"]
    assert seen(replace(LAUNCH, flags=flags), kv_cache_memory_bytes="1G") == []
    assert seen(replace(LAUNCH, flags=flags, gpu=False)) == []


def test_fields_behind_dots_count_as_json_does() -> None:
    dotted = {**GOOD, "compilation-config": None, "compilation-config.cudagraph_mode": "FULL", "enforce-eager": None}
    assert found(replace(LAUNCH, flags=dotted)) == ["eager"]
    dotted = {**GOOD, "speculative-config.num_speculative_tokens": "3"}
    assert found(replace(LAUNCH, flags=dotted)) == ["drafts"]


def test_forked_workers_block() -> None:
    (one,) = rules.find_issues(replace(LAUNCH, env={"VLLM_WORKER_MULTIPROC_METHOD": "fork"}))
    assert (one.rule, one.blocks, one.at) == ("fork", True, "env.VLLM_WORKER_MULTIPROC_METHOD")
    assert rules.find_issues(replace(LAUNCH, env={"VLLM_WORKER_MULTIPROC_METHOD": "spawn"})) == ()
    assert rules.find_issues(replace(LAUNCH, env={"VLLM_WORKER_MULTIPROC_METHOD": "fork"}, gpu=False)) == ()


def test_a_length_beyond_the_models_own_blocks_and_warns_where_it_is_allowed() -> None:
    short = replace(LAUNCH, model=ModelLimits("llama", 4096))
    (one,) = rules.find_issues(short)
    assert (one.rule, one.blocks) == ("model-length", True)
    assert one.reason == "--max-model-len 131072, and the model's config.json allows 4096"
    (one,) = rules.find_issues(replace(short, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}))
    assert (one.rule, one.blocks) == ("long-by-will", False)
    assert seen(short, hf_overrides='{"max_position_embeddings":131072}') == []
    assert seen(replace(short, flags={**GOOD, "hf-overrides.max_position_embeddings": "131072"})) == []


def test_a_pool_that_was_measured_at_another_length_warns_alone() -> None:
    (one,) = rules.find_issues(replace(LAUNCH, flags={**GOOD, "max-model-len": "700000", "max-num-seqs": "1"}))
    assert (one.rule, one.blocks) == ("pool-length", False)


def test_mtp_is_deepseeks_only_where_the_model_is() -> None:
    assert seen(replace(LAUNCH, model=ModelLimits("qwen3_next")), speculative_config=DRAFTS % ("mtp", 3)) == []


@pytest.mark.parametrize(
    ("kept", "env", "warns"),
    [
        ((), {}, True),
        (("/root/.cache/flashinfer",), {}, True),
        (("/rootless",), {}, True),
        (("/root/.cache/vllm",), {}, False),
        (("/root",), {}, False),
        (("/home/vllm/.cache",), {}, False),
        (("/cache",), {}, True),
        (("/cache",), {"VLLM_CACHE_ROOT": "/cache/vllm"}, False),
        (("/root/.cache/vllm",), {"VLLM_CACHE_ROOT": "/tmp/vllm"}, False),
        (("/x",), {"XDG_CACHE_HOME": "/x"}, False),
    ],
)
def test_all_custom_operations_want_a_cache(kept: tuple[str, ...], env: dict[str, str], warns: bool) -> None:
    assert found(replace(LAUNCH, kept=kept, env=env)) == ["compile-cache"] * warns
    listed = {**GOOD, "compilation-config": "{}", "compilation-config.custom_ops+": "all"}
    assert found(replace(LAUNCH, kept=kept, env=env, flags=listed)) == (["compile-cache"] * warns)
    some = {**GOOD, "compilation-config": '{"custom_ops":["none"]}'}
    assert rules.find_issues(replace(LAUNCH, kept=(), flags=some)) == ()


def test_broken_json_says_where() -> None:
    (one,) = rules.find_issues(replace(LAUNCH, flags={**GOOD, "compilation-config": '{"cudagraph_mode": FULL'}))
    assert one.reason == "--compilation-config is no JSON: Expecting value, line 1 column 20"  # as vLLM 0.32 says
    (one,) = rules.find_issues(replace(LAUNCH, flags={**GOOD, "speculative-config": "{“method”:“mtp”}"}))
    assert "line 1 column 2; it holds “" in one.reason


def test_every_rule_has_its_own_name() -> None:
    assert len({rule.name for rule in rules.RULES}) == len(rules.RULES)
    assert all(rule.name in rules.describe_rules() for rule in rules.RULES)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("vllm serve /m --max-model-len 5 --enable-x --y=1", {"max-model-len": "5", "enable-x": None, "y": "1"}),
        ("--max_model_len=5 --max-model-len 6", {"max-model-len": "6"}),
        ("--compilation_config.cudagraph_mode=NONE", {"compilation-config.cudagraph_mode": "NONE"}),
        ("-tp 2 -cc={} -x 3", {"tensor-parallel-size": "2", "compilation-config": "{}"}),
        ("--a=--b --a= -- --", {"a": ""}),
        ("--allowed a b c", {"allowed": "a"}),
    ],
)
def test_words(said: str, expected: dict[str, str | None]) -> None:
    assert first_values(said.split()) == expected


@pytest.mark.parametrize(
    ("text", "amount"),
    [("131072", 131072), ("1k", 1000), ("1K", 1024), ("25.6k", 25600), ("1M", 1 << 20), ("2g", 2 * 10**9),
     ("25.6", None), ("25.6K", None), ("1T", 1 << 40), (" 5 ", 5), ("", None), ("auto", None), ("-1", None),
     ("1" * 99, None), ("\u0661", None), ("1e3", None)],
)  # fmt: skip
def test_amounts_are_read_as_vllm_does(text: str, amount: int | None) -> None:
    assert Launch({"max-model-len": text}).amount("max-model-len") == amount


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({}, None),
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "seq_length": 2048}, 2048),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
        ({"text_config": {"max_position_embeddings": 262144}, "max_position_embeddings": 5}, 262144),
        # DeepSeek-V3's own; V4-Flash has 65536 x 16.
        ({"max_position_embeddings": 163840,
          "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}}, 163840),
        # 0.32 takes the length as scaled.
        ({"max_position_embeddings": 131072,
          "rope_scaling": {"type": "yarn", "factor": 2, "original_max_position_embeddings": 4096}}, 131072),
        ({"max_position_embeddings": 32768,
          "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, 131072),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2}}, 8192),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": None}, 4096),
        ({"max_position_embeddings": 131072, "model_type": "gemma3_text",
          "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 4096, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0}, "sliding_attention": {"rope_type": "default"}}},
         8192),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "yarn", "factor": "4"}}, None),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "yarn", "factor": 4}}, None),
        ({"max_position_embeddings": True}, None),
        ({"max_position_embeddings": -1}, None),
        ({"max_position_embeddings": "4096"}, None),
    ],
)  # fmt: skip
def test_a_models_own_length(config: dict[str, object], longest: int | None) -> None:
    assert parse_limits(config).max_length == longest


HEAD, WORKER = Place(0, 2, "10.0.0.1", 29501), Place(1, 2, "10.0.0.1", 29501)
SERVE = "vllm serve /m -tp 2 --nnodes 2 --master-addr 10.0.0.1 --master-port 29501 --node-rank"
BY_ROLE = f"if [ $RANK = 0 ]; then exec {SERVE} 0\nelse exec {SERVE} 1 --headless; fi"


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        (f"exec {SERVE} 0", HEAD, []),
        (f"exec {SERVE} 1 --headless", WORKER, []),
        (f"exec {SERVE} 1", WORKER, ["script-headless"]),
        (f"exec {SERVE} 1 # --headless", WORKER, ["script-headless"]),
        (f"exec {SERVE} 0 --headless", HEAD, ["script-headless"]),
        (f"exec {SERVE} 0", WORKER, ["script-headless", "script-rank"]),
        (f"exec {SERVE} 0 --headless", WORKER, ["script-rank"]),
        (f"nohup {SERVE} 0 \\\n  --headless > /tmp/log 2>&1 &", WORKER, ["script-rank"]),
        (f"exec {SERVE} $RANK --headless", WORKER, []),
        ("MORE=(--headless)\nexec vllm serve /m ${MORE[@]}", WORKER, []),
        (". /etc/vllm.conf\nexec vllm serve /m $MORE", WORKER, []),
        ("exec vllm serve /m --served-model-name a#b --headless", WORKER, []),
        ('if [ $# -gt 0 ]; then exec "$@"; fi\nexec vllm serve /m', WORKER, []),
        (BY_ROLE, HEAD, []),
        (BY_ROLE, WORKER, []),
        ("exec vllm serve $(cat /etc/words)", WORKER, []),
        ('mapfile -t WORDS </etc/words\nexec vllm serve "${WORDS[@]}"', WORKER, []),
        ("exec vllm serve --config /etc/vllm.yaml", WORKER, []),
        ("vllm serve --help >/tmp/help; exec /opt/start", WORKER, []),
        ("if [ $RANK = 0 ]; then vllm serve /m; else exec ray start --address $HEAD --block; fi", WORKER, []),
        (f'. /etc/env\n{SERVE} 5 "$@"', WORKER, []),
        ('exec "${@:1}"', WORKER, []),
        ('echo vllm serve; exec "$@"', WORKER, []),
        ("echo vllm serve --node-rank 7", WORKER, []),
        ("exec vllm serve /m --headless --master-addr spark1 --nnodes 02", WORKER, []),
        (
            "exec vllm serve /m --headless --master-addr 10.0.0.9 --nnodes=3 --master_port 1",
            WORKER,
            ["script-rank"] * 3,
        ),
        ("python3 -m vllm.entrypoints.openai.api_server --node-rank 1", WORKER, ["script-headless"]),
        ("/opt/venv/bin/vllm serve /m", WORKER, ["script-headless"]),
        ("exec /opt/start", WORKER, []),
        ("", WORKER, []),
    ],
)
def test_a_script_of_ones_own(text: str, place: Place, expected: list[str]) -> None:
    assert [one.rule for one in script.find_misplaced(script.parse_script(text), place)] == expected


def test_a_script_is_read_as_the_shell_would() -> None:
    text = f"""#!/bin/bash
# vllm serve --not-this 'nor this
export VLLM_WORKER_MULTIPROC_METHOD=fork OTHER="$HOME"
HF_HUB_OFFLINE=1 exec vllm serve "/models/a b" --max-model-len "$LENGTH" \\
   --compilation-config '{GOOD["compilation-config"]}' --speculative-config {{"method":"mtp"}}
"""
    read = script.parse_script(text)
    assert read.env == {"VLLM_WORKER_MULTIPROC_METHOD": "fork", "HF_HUB_OFFLINE": "1"}
    assert read.serves == (
        {
            "max-model-len": None,
            "compilation-config": GOOD["compilation-config"],
            "speculative-config": "{method:mtp}",
        },
    )
    assert not read.passes_on


@pytest.mark.parametrize(
    "text",
    [
        """vllm serve /m --hf-overrides '{"a": 1}' --served-model-name "a b" --x=y # --not-this""",
        """vllm serve /m \\\n  --compilation-config {"custom_ops":["all"]} \\\n  --max-model-len 1k;""",
        """A=b nohup vllm serve /m --speculative-config "{\\"method\\":\\"mtp\\"}" >/dev/null 2>&1 | cat""",
        """if true; then exec vllm serve --node-rank 1 --headless; fi""",
        """(vllm serve /m --a 'x\ny' --b) && true""",
        """vllm serve --a=''  --b "" -tp 2 || exit 1""",
        """echo "it's" 'so'; vllm serve --a it\\'s""",
        """vllm serve --a x#y --b '#' --c \\#z --d "a #b" --e "#"# --f;# --not-this""",
    ],
)
def test_bash_gives_an_engine_the_words_that_are_read_here(tmp_path: Path, text: str) -> None:
    said = tmp_path / "said"
    (tmp_path / "vllm").write_text(f"#!/bin/bash\nprintf '%s\\0' \"$@\" >{said}\n")
    (tmp_path / "vllm").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    subprocess.run(["bash", "-c", text], env=env, cwd=tmp_path, check=True, timeout=30, stdout=subprocess.DEVNULL)
    (serve,) = script.parse_script(text).serves
    assert serve == first_values(said.read_text().split("\0")[1:-1])


PLAN = LaunchPlan(
    recipe="r",
    role="worker",
    node=Node(1, "10.0.0.2", "10.0.0.1", 2),
    image="i",
    entrypoint=("vllm", "serve"),
    argv=("vllm", "serve", "/models/m", *(word for flag, text in GOOD.items() for word in (f"--{flag}", str(text)))),
    env=(),
    secrets=(),
    container=Container(),
    caches=(Cache("vllm", "/root/.cache/vllm"),),
    script="",
    user_script="",
    model_path="/srv/m",
    served_name="m",
    api_host="127.0.0.1",
    api_port=8000,
    master_port=29501,
    memory_bytes=None,
    gpu_memory_utilization=0.9,
    shared=(),
    digest="d",
    kv_cache_tokens=612_341,
)
OWN = replace(PLAN, user_script="/root/s.sh", env=(("VLLM_WORKER_MULTIPROC_METHOD", "spawn"),))


def judged(tree: Tree, plan: LaunchPlan) -> Verdict:
    return PlanLint(plan).run(Host(tree.root))[1]


def test_the_plan_is_judged_with_the_model_that_it_names(tree: Tree) -> None:
    verdict = judged(tree, PLAN)
    assert (verdict.level, verdict.reason) == (Level.OK, "nothing in the 6 flags of the plan is known to fail")
    tree.file("/srv/m/config.json", '{"max_position_embeddings": 4096}')
    verdict = judged(tree, PLAN)
    assert (verdict.level, verdict.hint) == (Level.BLOCK, "lower max-model-len")
    assert "allows 4096" in verdict.reason
    forked = replace(PLAN, env=(("VLLM_WORKER_MULTIPROC_METHOD", "fork"),))
    assert "ShmRingBuffer" in judged(tree, forked).reason


@pytest.mark.parametrize("config", ["", "{", "[]", "[" * 100_000, "null", '"x"'])
def test_an_invalid_config_is_ignored(tree: Tree, config: str) -> None:
    tree.file("/srv/m/config.json", config)
    assert judged(tree, PLAN).level is Level.OK


def test_a_volume_keeps_what_was_compiled_unless_it_is_read_only(tree: Tree) -> None:
    for read_only, level in ((True, Level.WARN), (False, Level.OK)):
        mount = Volume(source="/srv/cache", target="/root/.cache", read_only=read_only)
        assert judged(tree, replace(PLAN, caches=(), container=Container(volumes=(mount,)))).level is level


@pytest.mark.parametrize(
    ("text", "level", "says"),
    [
        ('export FOO=1\nexec "$@"', Level.OK, "the 6 flags of the plan"),
        ("exec vllm serve /m --headless --gpu-memory-utilization 0.9", Level.OK, "the 2 flags of engine.script"),
        ("exec vllm serve /m --gpu-memory-utilization 0.9", Level.BLOCK, "no --headless"),
        ("exec vllm serve /m --headless", Level.WARN, "--gpu-memory-utilization is left out"),
        (BY_ROLE.replace("serve", "serve --gpu-memory-utilization 0.9"), Level.OK, "the 7 flags of engine.script"),
        (BY_ROLE.replace("serve", "serve --gpu-memory-utilization 0.93"), Level.WARN, "0.93: at most 0.912"),
        ("VLLM_WORKER_MULTIPROC_METHOD=fork vllm serve --headless", Level.BLOCK, "ShmRingBuffer"),
        ("vllm serve --headless --hf-overrides {'a':1} --gpu-memory-utilization 0.9", Level.BLOCK, "is no JSON"),
    ],
)
def test_what_the_own_script_starts_counts(tree: Tree, text: str, level: Level, says: str) -> None:
    tree.file("/root/s.sh", text)
    verdict = judged(tree, OWN)
    assert verdict.level is level
    assert says in verdict.reason


def test_a_variable_of_the_plan_may_hold_headless(tree: Tree) -> None:
    tree.file("/root/s.sh", "exec vllm serve /m --gpu-memory-utilization 0.9 $MORE")
    assert judged(tree, OWN).level is Level.BLOCK
    assert judged(tree, replace(OWN, env=(("MORE", "--headless --enforce-eager"),))).level is Level.OK


def test_a_missing_script_is_left_to_script_paths(tree: Tree) -> None:
    assert judged(tree, OWN).level is Level.OK
    tree.folder("/root/s.sh")
    assert judged(tree, OWN).level is Level.OK


def test_a_script_too_large_to_be_one_is_not_known(tree: Tree) -> None:
    tree.file("/root/s.sh", "x" * (SCRIPT_LIMIT_BYTES + 1))
    with pytest.raises(OSError, match="larger than"):
        judged(tree, OWN)


def test_evidence_holds_no_word_of_the_script(tree: Tree) -> None:
    from sparkd.preflight.runner import examine

    tree.file("/root/s.sh", "exec vllm serve /m --headless --api-key do-not-print --gpu-memory-utilization 0.9")
    (finding,) = examine([PlanLint(OWN)], Host(tree.root))
    assert finding.facts["own_command"] is True
    assert "do-not-print" not in json.dumps(finding.facts) + finding.verdict.reason


RECIPE = """schema: 1
name: x
model: {path: m}
image: {ref: i}
args:
  gpu-memory-utilization: SHARE
  tensor-parallel-size: "{cluster.size}"
  kv-transfer-config: "{\\"rank\\": {node.rank}}"
env: {VLLM_WORKER_MULTIPROC_METHOD: HOW}
"""


@pytest.mark.parametrize(
    ("share", "method", "code", "out", "err"),
    [
        ("0.9", "spawn", 0, "x is good (", ""),
        ("0.93", "spawn", 0, "x is good, with 1 warning (", ""),
        ("0.93", "fork", 78, "x.yaml: line 6: --gpu-memory-utilization 0.93", "x.yaml: line 9: VLLM_WORKER_MULTIPROC"),
    ],
)
def test_recipe_check_prints_warnings_and_fails_on_errors(
    tmp_path: Path, share: str, method: str, code: int, out: str, err: str
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(RECIPE.replace("SHARE", share).replace("HOW", method))
    done = sparkd("recipe", "check", str(path))
    assert done.returncode == code, done.stderr
    assert out in done.stdout
    assert err in done.stderr
    assert ("is good" in done.stdout) == (code == 0)


def test_the_pools_size_is_a_number_of_tokens(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(RECIPE.replace("SHARE", "0.9").replace("HOW", "spawn") + "expect: {kv_cache_tokens: many}\n")
    done = sparkd("recipe", "check", str(path))
    assert done.returncode == 78
    assert 'line 10: expect.kv_cache_tokens = "many": must be a whole number of tokens' in done.stderr


FLAG = st.sampled_from(
    [*GOOD, *predicates.JSON_FLAGS, *predicates.JSON_OR_TEXT, *predicates.RENAMED, "enforce-eager", "x", "", "a.b", "."]
)
KEY = st.sampled_from(
    ["cudagraph_mode", "custom_ops", "method", "num_speculative_tokens", "max_position_embeddings", "rope_scaling",
     "rope_parameters", "rope_type", "factor", "model_type", "text_config", "model_max_length", "x"]
)  # fmt: skip
LEAF = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text(max_size=4)
VALUE = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEY, inner, max_size=3))
TEXT = VALUE.map(json.dumps) | st.text(max_size=12) | st.sampled_from(["all", "0.9", "9" * 5000, "1k", "\ud800", "$"])


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(FLAG, st.none() | TEXT, max_size=5), st.dictionaries(st.text(max_size=3), TEXT, max_size=2), VALUE
)
@example({"max-model-len": "5"}, {}, {"max_position_embeddings": float("inf")})
@example({"speculative-config": '{"method":[],"num_speculative_tokens":true}'}, {}, None)
def test_no_flags_environment_or_config_are_too_odd(
    flags: dict[str, str | None], env: dict[str, str], config: object
) -> None:
    model = parse_limits(config) if isinstance(config, dict) else ModelLimits()
    for one in rules.find_issues(Launch(flags, env, model=model, pool_tokens=1, kept=("", "/"))):
        assert one.reason
        assert one.hint


SHELL = st.lists(
    st.sampled_from(
        ["vllm serve", " ", "'", '"', "\\", "\n", "#", "$@", "--headless", "--nnodes=", "2", ";", "(", "A="]
    ),
    max_size=30,
).map("".join) | st.text(max_size=20)


@settings(max_examples=300, deadline=None)
@given(SHELL)
def test_no_script_is_too_odd(text: str) -> None:
    for one in script.find_misplaced(script.parse_script(text), WORKER):
        assert one.reason
