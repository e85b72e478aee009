"""Every fault of a recipe is named with file and line."""

from pathlib import Path

import pytest
from tests.unit.recipe_files import MINIMAL_RECIPE, load_text

from sparkd.base.lib.errors import ConfigError


def of_model(path: str) -> str:
    return MINIMAL_RECIPE.replace("path: m", f"path: {path}")


@pytest.mark.parametrize(
    ("text", "line", "needles"),
    [
        # YAML
        ("schema: [", 1, ["expected node content"]),
        ("", 1, ["must be a mapping"]),
        ("- 1\n", 1, ["must be a mapping"]),
        ("--- 1\n--- 2\n", 2, ["another document"]),
        (f"{MINIMAL_RECIPE}a: \x01\n", 5, ["not allowed"]),
        (f"{MINIMAL_RECIPE}env:\n  A: 1\n  A: 2\n", 7, ["env.A is given twice"]),
        (f"{MINIMAL_RECIPE}env: &e\n  A: 1\nargs: *e\n", 5, ["alias"]),
        (f"{MINIMAL_RECIPE}env:\n  <<: {{A: 1}}\n", 6, ["extends"]),
        (f"{MINIMAL_RECIPE}env:\n  A: !!python/name:os.system x\n", 6, ["tag", "not known"]),
        (f"{MINIMAL_RECIPE}env: {{A: &a x, B: &a y}}\n", 5, ["give each &name once"]),
        (f"{MINIMAL_RECIPE}# %C0%80\nenv:\n  A: !a%C0%80 x\n", 7, ["codec can't decode"]),
        # env
        (f"{MINIMAL_RECIPE}env:\n  A: 2026-01-01\n", 6, ["date", "quotes"]),
        (f"{MINIMAL_RECIPE}env:\n  A: true\n", 6, ["A is True", "quotes"]),
        (f"{MINIMAL_RECIPE}env:\n  A B: 1\n", 6, ["no name of an environment variable"]),
        (f"{MINIMAL_RECIPE}env:\n  PPID: 1\n", 6, ["belongs to the shell"]),
        (f'{MINIMAL_RECIPE}env:\n  A: "\\0"\n', 6, ["NUL"]),
        (f'{MINIMAL_RECIPE}env:\n  A: "\\ud800"\n', 6, ["Unicode"]),
        (f"{MINIMAL_RECIPE}env:\n  HF_TOKEN: hf_1\n", 6, ["looks like a secret"]),
        (f"{MINIMAL_RECIPE}env: 3\n", 5, ["env = 3", "mapping"]),
        # container and caches
        (f"{MINIMAL_RECIPE}container: []\n", 5, ["must be a mapping: write NAME: VALUE lines below container:"]),
        (f"{MINIMAL_RECIPE}container:\n  gpu: all\n", 6, ["container.gpu", "did you mean container.gpus?"]),
        (f"{MINIMAL_RECIPE}container:\n  gpus: some\n", 6, ['container.gpus = "some"', "'all' or 'none'"]),
        (f"{MINIMAL_RECIPE}container:\n  network: bridge\n", 6, ["'host'"]),
        (f"{MINIMAL_RECIPE}container:\n  shm_bytes: 64g\n", 6, ['"64g"', "a number of bytes: 68719476736"]),
        (f"{MINIMAL_RECIPE}container:\n  privileged: 1\n", 6, ["boolean"]),
        (f"{MINIMAL_RECIPE}container:\n  ulimits: {{memlok: 1}}\n", 6, ["memlok", "'memlock'"]),
        (
            f"{MINIMAL_RECIPE}container:\n  ulimits: {{memlock: {{soft: 1, hard: -2}}}}\n",
            6,
            ["greater than or equal to -1"],
        ),
        (
            f"{MINIMAL_RECIPE}container:\n  ulimits: {{nofile: {{soft: 1, hard: {1 << 63}}}}}\n",
            6,
            ["less than or equal to"],
        ),
        *(
            (f"{MINIMAL_RECIPE}container:\n  ulimits: {{nofile: {{soft: {soft}, hard: 9}}}}\n", 6, ["at most hard, 9"])
            for soft in (10, -1)
        ),
        (f"{MINIMAL_RECIPE}container:\n  devices:\n  - /dev/a\n  - dev/b\n", 8, ["devices.[1]", "absolute path"]),
        (f"{MINIMAL_RECIPE}container:\n  volumes: [/a:/b]\n", 6, ["SOURCE:TARGET:ro"]),
        (f"{MINIMAL_RECIPE}container:\n  volumes: ['/a:/models/x:ro']\n", 6, ["sparkd's own"]),
        *(
            (f"{MINIMAL_RECIPE}container:\n  volumes: ['/a:{target}:ro']\n", 6, ["the system's own"])
            for target in ("/run", "/run/x", "/proc", "/proc/sys", "/dev/shm", "/sys", "//sys/fs", "/./dev")
        ),
        (f"{MINIMAL_RECIPE}container:\n  volumes: ['/a:/:ro']\n", 6, ["sparkd's own"]),
        (f"{MINIMAL_RECIPE}caches:\n  vllm: /dev/shm/c\n", 6, ["the system's own"]),
        (f"{MINIMAL_RECIPE}container:\n  volumes: ['/a:/b:ro', '/c:/b:rw']\n", 6, ["mounted twice"]),
        (f"{MINIMAL_RECIPE}caches:\n  Vllm: /c\n", 6, ["short name"]),
        (f"{MINIMAL_RECIPE}caches:\n  _head: /c\n", 6, ["short name"]),  # of a head's plan on its worker
        (f"{MINIMAL_RECIPE}caches:\n  vllm: c\n", 6, ["absolute path"]),
        # args
        (f"{MINIMAL_RECIPE}args:\n- --seed=1\n", 5, ["write NAME: VALUE lines below args:, such as max-num-seqs: 4"]),
        (f"{MINIMAL_RECIPE}args:\n  max_model_len: 1\n  max-model-len: 1\n", 7, ["--max-model-len is given twice"]),
        (f"{MINIMAL_RECIPE}args:\n  node_rank: 1\n", 6, ["--node-rank belongs to sparkd"]),
        (f"{MINIMAL_RECIPE}args:\n  headless: true\n", 6, ["--headless belongs to sparkd"]),
        (f"{MINIMAL_RECIPE}args:\n  distributed-executor-backend: ray\n", 6, ["executor"]),
        (f"{MINIMAL_RECIPE}args:\n  served-model-name: a\n", 6, ["model.served_name"]),
        (f"{MINIMAL_RECIPE}args:\n  api-key: a\n", 6, ["VLLM_API_KEY"]),
        (f"{MINIMAL_RECIPE}args:\n  nnodes.x: 1\n", 6, ["--nnodes.x belongs to sparkd"]),
        (f"{MINIMAL_RECIPE}args:\n  no_headless.x: 1\n", 6, ["--no-headless.x belongs to sparkd"]),
        (f"{MINIMAL_RECIPE}args:\n  ssl_certfile: /c\n", 6, ["--ssl-certfile", "plain HTTP"]),
        (f"{MINIMAL_RECIPE}args:\n  ssl-keyfile: /k\n", 6, ["--ssl-keyfile", "plain HTTP"]),
        (f"{MINIMAL_RECIPE}args:\n  uds: /s\n", 6, ["--uds", "over TCP"]),
        (f"{MINIMAL_RECIPE}args:\n  config: /f\n", 6, ["--config", "a file of flags"]),
        (f"{MINIMAL_RECIPE}args:\n  --seed: 1\n", 6, ["no flag name"]),
        (f"{MINIMAL_RECIPE}args:\n  'a b': 1\n", 6, ["no flag name"]),
        (f"{MINIMAL_RECIPE}args:\n  a: [-x]\n", 6, ["starts with a dash"]),
        (f"{MINIMAL_RECIPE}args:\n  a: []\n", 6, ["empty list"]),
        (f"{MINIMAL_RECIPE}args:\n  a: [[1]]\n", 6, ["only text and numbers"]),
        # model
        *((of_model(path), 3, ["model.path", "longer than 4095 bytes"]) for path in ("m" * 4095, "é" * 2048)),
        (of_model("../m"), 3, ["model.path", "no .."]),
        *((of_model(path), 3, ["model.path", "whole file system"]) for path in ("/", "//", "/.")),
        (of_model("m, served_name: -x"), 3, ["served_name", "must not begin with a dash"]),
        (of_model("m, served_name: ' '"), 3, ["served_name", "must be a name"]),
        (of_model("a//b"), 3, ["plain path"]),
        ("schema: 1\nname: x\nimage: {ref: i}\n", 1, ["model.path", "must name the model's folder"]),
        # other keys
        (f"{MINIMAL_RECIPE}arg: {{}}\n", 5, ["arg: there is no such key", "did you mean args?"]),
        (f"{MINIMAL_RECIPE}nodes: {{min: 3, max: 2}}\n", 5, ["at most nodes.max"]),
        (f"{MINIMAL_RECIPE}executor: mpi\n", 5, ["'mp' or 'ray'"]),
        (f"{MINIMAL_RECIPE}memory_bytes: 0\n", 5, ["memory_bytes = 0"]),
        (
            f"{MINIMAL_RECIPE}expect: {{kv_cache_tokens: many}}\n",
            5,
            ['kv_cache_tokens = "many"', "whole number"],
        ),
        *(
            (f"{MINIMAL_RECIPE}expect: {{text_logprob: {value}}}\n", 5, ["expect.text_logprob", "0 or below"])
            for value in ("1.5", "true", "a")
        ),
        ("schema: 2\nname: x\nmodel: {path: m}\nimage: {ref: i}\n", 1, ["schema = 2", "must be 1"]),
        ("name: x\nmodel: {path: m}\nimage: {ref: i}\n", 1, ["schema is missing"]),
        ("schema: 1\nname: y\nmodel: {path: m}\nimage: {ref: i}\n", 2, ['"y"', "the file's name"]),
        ("schema: 1\nname: x\nmodel: {path: m}\nimage: {ref: i, entrypoint: []}\n", 4, ["must name a program"]),
    ],
)
def test_each_fault_names_file_line_and_need(tmp_path: Path, text: str, line: int, needles: list[str]) -> None:
    path = tmp_path / "x.yaml"
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, text)
    (reason,) = caught.value.reason.splitlines()
    for needle in (f"{path}: line {line}: ", *needles):
        assert needle in reason
    assert "hf_1" not in reason


@pytest.mark.parametrize("target", ["/runs", "/srv/run", "/device", "/system"])
def test_a_target_beside_the_systems_own_is_good(tmp_path: Path, target: str) -> None:
    (volume,) = load_text(tmp_path, f"{MINIMAL_RECIPE}container:\n  volumes: ['/a:{target}:ro']\n").container.volumes
    assert volume.target == target


def test_a_field_of_a_flag_that_sparkd_does_not_own_is_good(tmp_path: Path) -> None:
    args = load_text(
        tmp_path, f"{MINIMAL_RECIPE}args:\n  compilation_config.cudagraph_mode: FULL\n  config-format: x\n"
    ).args
    assert args == {"compilation-config.cudagraph_mode": "FULL", "config-format": "x"}


def test_all_faults_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, f"{MINIMAL_RECIPE}arg: 1\nargs: {{headless: true}}\nnodes: {{min: 0}}\n")
    assert len(caught.value.reason.splitlines()) == 3
