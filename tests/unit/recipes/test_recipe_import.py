"""Recipes of eugr and sparkrun: the same command line as from their tools, nothing run, each fault with its line."""

import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit import foreign_recipes as foreign

from sparkd.base.config import Settings
from sparkd.base.lib.errors import ConfigError
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import Node
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.schema import Recipe
from sparkd.tools.cli import main
from sparkd.tools.importers import convert
from sparkd.tools.importers.bundle import Place
from sparkd.tools.importers.marks import shown
from sparkd.tools.importers.templates import Values, substitute
from sparkd.tools.importers.variables import CommandError

PUBLISHED = Path(__file__).parent / "foreign-recipes"
EUGR = PUBLISHED / "eugr-v1-deepseek-v4-flash.yaml"
SPARKRUN = PUBLISHED / "sparkrun-v2-deepseek4-flash-fp8-mtp-vllm.yaml"
V1 = "recipe_version: '1'\nname: x\ncontainer: i\n"
V2 = "recipe_version: '2'\nmodel: o/m\ncontainer: i\n"


def imported(folder: Path, text: str, **overrides: str) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe, read back from the imported text, and the notes."""
    path = folder / "given.yaml"
    path.write_text(text)
    result = convert.import_file(path, overrides)
    written = folder / "written.yaml"
    written.write_text(result.text)
    return load_recipe(str(written), []).recipe, result.notes


def argv(recipe: Recipe) -> list[str]:
    size = recipe.nodes.min
    return list(make_plan(recipe, Settings(), Node(0, "10.0.0.1", "10.0.0.1", size, "fab0")).argv)


def check_same_words(recipe: Recipe, made: foreign.Made) -> None:
    program, _, model, *rest = argv(recipe)
    _, model_word, *flags = foreign.words_by_bash(made.command)
    ours, theirs = foreign.meaning(rest), foreign.meaning(flags)
    served = theirs.pop("served-model-name", [made.model])
    assert recipe.env == made.env
    assert ours.pop("served-model-name") == served
    assert (program, model) == ("vllm", f"/models/{made.model.rpartition('/')[2]}")
    assert (model_word, ours) == (made.model, theirs)


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("make", [foreign.eugr, foreign.sparkrun], ids=["eugr", "sparkrun"])
def test_a_published_recipe_gives_vllm_the_words_that_its_own_tool_would(make, seed: int, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # one of two functions
    made = make(seed)
    recipe, _ = imported(tmp_path, made.text, **made.overrides)
    check_same_words(recipe, made)


def test_the_recipe_of_eugr(tmp_path: Path) -> None:
    recipe, notes = imported(tmp_path, EUGR.read_text())
    command = EUGR.read_text().partition("command: |\n")[2]
    defaults = {
        "port": 8000, "host": "0.0.0.0", "tensor_parallel": 2, "pipeline_parallel": 1, "gpu_memory_utilization": 0.85,
        "max_model_len": 200000, "max_num_batched_tokens": 4096, "max_num_seqs": 2, "block_size": 256,
        "served_model_name": "deepseek-v4-flash",
    }  # fmt: skip
    env = {name: str(value) for name, value in yaml.safe_load(EUGR.read_text())["env"].items()}
    check_same_words(recipe, foreign.Made("", command.format(**defaults), "deepseek-ai/DeepSeek-V4-Flash", env=env))
    assert (recipe.nodes.min, recipe.nodes.max, recipe.image.ref) == (2, 2, "vllm-node-dsv4")
    assert "(cd spark-vllm-docker && ./build-and-copy.sh -t vllm-node-dsv4 --vllm-repo" in recipe.image.build
    assert "[ -d spark-vllm-docker ] || git clone " in recipe.image.build
    (note,) = notes  # what it may do is a warning of `recipe check`
    assert "--distributed-executor-backend ray: left out" in note


def test_the_recipe_of_sparkrun(tmp_path: Path) -> None:
    recipe, notes = imported(tmp_path, SPARKRUN.read_text(), port="9000")
    model = "deepseek-ai/DeepSeek-V4-Flash"
    assert (recipe.args["port"], recipe.model.served_name, recipe.model.repo) == (9000, model, model)
    assert recipe.args["speculative-config"] == '{"method": "mtp", "num_speculative_tokens": 2}'
    assert recipe.args["tensor-parallel-size"] == 2
    assert [note.partition(": line ")[2][:8] for note in notes] == ["14: mods"]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("0.90", "0.9"), ("012", "10"), ("yes", "True"), ("1_000", "1000"), ("1e5", "1e5"), ("1:30", "90"), ("y", "y"),
        ("!!bool maybe", "maybe"),
    ],
)  # fmt: skip
def test_a_number_is_what_pyyaml_makes_of_it(tmp_path: Path, written: str, value: str) -> None:
    recipe, _ = imported(tmp_path, f"{V1}defaults: {{x: {written}}}\ncommand: vllm serve m --flag {{x}}\n")
    assert str(recipe.args["flag"]) == value


def test_on_one_node_eugrs_tool_starts_one_rank(tmp_path: Path) -> None:
    text = f"{V1}solo_only: true\ndefaults: {{tensor_parallel: 2}}\ncommand: vllm serve m -tp {{tensor_parallel}}\n"
    recipe, notes = imported(tmp_path, text)
    assert (recipe.args, recipe.nodes.max) == ({"tensor-parallel-size": 1}, 1)
    assert any("line 5: defaults.tensor_parallel: 1 is taken" in note for note in notes)


def test_of_a_key_that_is_given_twice_the_last_one_counts_as_to_pyyaml(tmp_path: Path) -> None:
    assert imported(tmp_path, f"{V1}container: j\ncommand: vllm serve m\n")[0].image.ref == "j"


def test_each_format_reads_braces_by_its_own_rule(tmp_path: Path) -> None:
    command = "defaults: {x: 1}\ncommand: vllm serve m --a '{{x}}' --b '{x:>3}'\n"
    assert imported(tmp_path, V1 + command)[0].args == {"a": "{x}", "b": "  1"}
    assert imported(tmp_path, V2 + command)[0].args == {"a": "{x}", "b": "{x:>3}"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: b\nc: [", "line 2: "),
        ("- a\n", "line 1: must be a mapping"),
        ("a: b\n", "line 1: is no recipe"),
        ("recipe_version: 3\n", "line 1: model is missing"),
        (f"{V2}include: base\ncommand: vllm serve m\n", "line 4: include: it changes another recipe"),
        (f"{V2}overrides: [{{when: {{nodes: 1}}}}]\ncommand: vllm serve m\n", "line 4: overrides: its values depend"),
        (f"{V2}runtime: sglang\n", 'line 4: runtime = "sglang": sparkd runs vLLM alone'),
        (f"{V1}command: vllm serve m --port {{port}}\n", "line 4: command: {port} is given no value"),
        (f"{V1}command: vllm serve m --x '{{\"a\":1}}'\n", "line 4: command: "),
        (f"{V1}command: 'vllm serve m {{x'\n", "line 4: command: expected '}' before end of string"),
        (f"{V1}defaults: {{x: 1}}\ncommand: 'vllm serve m --a {{x:>999999999}}'\n", "a format that is not taken"),
        (f"{V2}defaults: {{x: '{'{x}' * 9}'}}\ncommand: vllm serve m --a {{x}}\n", "is longer than"),
        (f"{V1}defaults: {{port: 2097152}}\ncommand: 'vllm serve m --a {{port:c}}'\n", "a format that is not taken: c"),
        (f"{V2}defaults: {{x: '{{y}}', y: '{{x}}'}}\ncommand: vllm serve m --a {{x}}\n", "has no end"),
        (f"{V2}command: vllm serve $M\n", "line 4: command: what $M stands for in $M is not known"),
        (f"{V2}command: vllm serve a; vllm serve b\n", "command: more than one `vllm serve` may run"),
        (f'{V2}command: "vllm serve m --a \'x"\n', "the quote ' has no end: close it"),
        (f"{V2}command: python -m other\n", "line 4: command: runs no `vllm serve`: write one plainly"),
        (f"{V2}command: vllm serve m -zz 1\n", "the short flag -zz is not known"),
        (f"{V2}command: vllm serve m --a=1 b\n", "b belongs to no flag: remove it"),
        (f"{V2}command: vllm serve m --a=1 sk-{'x' * 20}\n", "*** belongs to no flag"),
        (f"{V2}command: vllm serve m --config f\n", "--config: a file of flags"),
        (f"{V2}command: vllm serve m --a '{{node.rank}}'\n", "sparkd would put in a value of its own"),
        (f"{V2}defaults: {{data_parallel: 2}}\ncommand: vllm serve m\n", "line 4: defaults.data_parallel"),
        (f"{V2}defaults: 3\n", "line 4: defaults = 3: must be a mapping"),
        (f"{V2}command: vllm serve '.'\n", 'line 1: model.path = "."'),
    ],
)
def test_a_refused_recipe_gives_line_and_reason(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        imported(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/given.yaml: line ")
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("command", "loss"),
    [
        ("vllm serve m --seed 1 --port {port}", "--port: left out: what {port} stands for .* -o port=VALUE"),
        ("vllm serve m --seed 1 --a '{\"b\": {x}}'", "--a: left out: what {x} stands for .* -o x=VALUE"),
        ("vllm serve m --seed 1 --a *.jinja", r"--a: left out: what \*.jinja stands for"),
        ('vllm serve m --seed 1 --a {"a":1,"b":2}', "--a: left out: what {a:1,b:2} stands for"),
        ("vllm serve m --seed 1\n  --port 1 --a b", "left out: --port 1 --a b .*: the line before it lacks its"),
    ],
)
def test_a_flag_that_cannot_be_read_is_missing_and_the_rest_is_taken(tmp_path: Path, command: str, loss: str) -> None:
    recipe, notes = imported(tmp_path, f"{V2}command: |\n  {command}\n")
    assert recipe.args == {"seed": 1}
    assert any(re.search(f"line 4: command: {loss}", note) for note in notes)
    assert f"#   line 4: command: {loss[:12]}" in (tmp_path / "written.yaml").read_text().partition("missing first")[2]


def test_a_value_for_a_placeholder_without_one_is_taken(tmp_path: Path) -> None:
    recipe, _ = imported(tmp_path, f"{V2}command: vllm serve m --port {{port}}\n", port="9000")
    assert recipe.args == {"port": 9000}
    for head in (V1, V2):
        text = f"{head}command: |\n  if x; then P=1; fi\n  vllm serve m --port $P --seed $S\n"
        assert imported(tmp_path, text, P="9000", S="2")[0].args == {"port": 9000, "seed": 2}


def test_variables_of_the_image_are_extended_where_the_engine_starts(tmp_path: Path) -> None:
    lines = ("export PATH=/x/bin:$PATH L=/lib:${LD_LIBRARY_PATH:-}", "export U=${PATH}x V=$W", "vllm serve m")
    recipe, notes = imported(tmp_path, f"{V2}command: |\n" + "".join(f"  {line}\n" for line in lines))
    start = 'export PATH=/x/bin:$PATH L=/lib:$LD_LIBRARY_PATH; exec vllm serve "$@"'
    assert recipe.image.entrypoint == ("bash", "-c", start, "vllm")
    assert not {"PATH", "L", "U", "V"} & recipe.env.keys()
    assert [note.partition("command: ")[2][:14] for note in notes if "command: " in note] == [
        "U: left out: w", "V: left out: w",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["PATH:/x", f"PATH:{'a' * 55}; touch /x #"])
def test_what_is_no_name_of_a_variable_gets_into_no_shell(tmp_path: Path, name: str) -> None:
    recipe, _ = imported(tmp_path, f"{V2}command: |\n  export '{name}'\n  vllm serve m\n")
    assert recipe.image.entrypoint == ("vllm", "serve")


def test_a_variable_that_is_there_already_is_exported_without_export(tmp_path: Path) -> None:
    lines = ("A=2", "N=3", "declare -x D=4", "PATH=/x:$PATH", "env C= vllm serve m")
    recipe, _ = imported(tmp_path, f"{V2}env: {{A: 1, C: 1}}\ncommand: |\n" + "".join(f"  {line}\n" for line in lines))
    assert {name: recipe.env.get(name) for name in "ACDN"} == {"A": "2", "C": "", "D": "4", "N": None}
    assert recipe.image.entrypoint[2] == 'export PATH=/x:$PATH; exec vllm serve "$@"'


def test_what_a_condition_extends_is_not_taken_for_the_images_own(tmp_path: Path) -> None:
    _, notes = imported(tmp_path, f"{V2}command: |\n  if x; then export PATH=/x:$PATH; fi\n  vllm serve m\n")
    assert any("PATH: left out: what ${PATH} stands for" in note for note in notes)


def test_a_secret_gets_into_no_flag_by_its_variable(tmp_path: Path) -> None:
    text = f"{V2}env: {{A_TOKEN: s3cret}}\ncommand: |\n  B_TOKEN=s3cret\n  vllm serve m --a $A_TOKEN --b $B_TOKEN x\n"
    _, notes = imported(tmp_path, text)
    assert "s3cret" not in "\n".join(notes) + (tmp_path / "written.yaml").read_text()
    assert [note.partition("--")[2][:12] for note in notes if "--" in note] == ["a: left out:", "b: left out:"]


def test_a_secret_in_what_only_a_shell_knows_is_in_no_note(tmp_path: Path) -> None:
    secret = "$(get --token s3cret99x)"
    text = f"{V2}command: |\n  login {secret}\n  export A={secret}\n  vllm serve m --a {secret}\n"
    _, notes = imported(tmp_path, text)
    assert len([note for note in notes if "***" in note]) == 3
    assert "s3cret" not in "\n".join(notes) + (tmp_path / "written.yaml").read_text()


@pytest.mark.parametrize("use", ["${X}", "<X>", "${X:-1}", '"${X[@]}"'])
def test_an_override_gives_each_form_that_a_refusal_names(tmp_path: Path, use: str) -> None:
    recipe, _ = imported(tmp_path, f"{V2}command: vllm serve m --seed {use}\n", X="9")
    assert recipe.args == {"seed": 9}


@pytest.mark.parametrize(
    ("command", "entrypoint", "args"),
    [
        ("env -u A vllm serve m", ("env", "-u", "A", "vllm", "serve"), {}),
        ("f() { vllm serve m; }", ("vllm", "serve"), {}),
        ("function f { vllm serve m; }", ("vllm", "serve"), {}),
        ("function f() { x; }\n  S=1\n  vllm serve m --seed $S", ("vllm", "serve"), {"seed": 1}),
        ('set -- --seed 1\n  vllm serve m "$@"', ("vllm", "serve"), {"seed": 1}),
        ('L=(m --seed)\n  vllm serve ${L[@]}"1"', ("vllm", "serve"), {"seed": 1}),
        ('vllm serve m --a "${X:-{\\"b\\":[1]}}"', ("vllm", "serve"), {"a": '{"b":[1]}'}),
        ("exec vllm serve ${M:-m} --block-size $A 2>&1 | tee x \\", ("vllm", "serve"), {"block-size": 16}),
    ],
)
def test_a_command_means_what_bash_makes_of_it(
    tmp_path: Path, command: str, entrypoint: tuple[str, ...], args: dict[str, object]
) -> None:
    recipe, _ = imported(tmp_path, f"{V2}env: {{A: 16}}\ncommand: |\n  {command}\n")
    assert recipe.image.entrypoint == entrypoint
    assert recipe.args == args


def test_an_override_that_nothing_uses_is_a_fault_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"-o prot: nothing .*; did you mean port\?"):
        imported(tmp_path, f"{V2}defaults: {{port: 1}}\ncommand: vllm serve m --port {{port}}\n", prot="9000")


def test_secrets_are_left_out_and_variables_are_those_of_the_tool(tmp_path: Path) -> None:
    command = "command: OMP_NUM_THREADS=4 vllm serve m --api-key s3cret\n"
    own = {V1: {"D": "{rank}"}, V2: {**foreign.OF_SPARKRUN, "A": "${B}"}}
    for text, more in own.items():
        given = f"{text}env: {{HF_TOKEN: s3cret, A: '${{B}}', C: 1, PATH_X: a b, D: '{{launch.rank}}'}}\n{command}"
        recipe, notes = imported(tmp_path, given if text == V2 else given.replace("launch.", ""))
        assert recipe.env == {"C": "1", "PATH_X": "a b", "OMP_NUM_THREADS": "4", **more}
        text_and_notes = "\n".join(notes) + (tmp_path / "written.yaml").read_text()
        assert "s3cret" not in text_and_notes
        assert "env.HF_TOKEN: its value is not taken: put it into /etc/sparkd/hf_token" in text_and_notes
        assert recipe.secrets == {"HF_TOKEN": "/etc/sparkd/hf_token", "VLLM_API_KEY": "/etc/sparkd/vllm_api_key"}
        assert "env.A: " in text_and_notes


def test_code_is_noted_and_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = f"touch {mark}"
    hooks = f"pre_exec: ['{code}']\npost_exec: ['{code}']\npost_commands: ['{code}']\nbuilder: x\n"
    _, notes = imported(tmp_path, f"{V2}{hooks}command: |\n  {code}\n  vllm serve m\n")
    assert not mark.exists()
    noted = [note.partition(": line ")[2].split(": ")[1] for note in notes if "not run" in note]
    assert noted == ["post_exec", "post_commands", "builder", "command"]
    hooks = "post_exec: ['curl -H \"Authorization: Bearer s3cret-s3cret-s3cret\" http://x']\n"
    _, notes = imported(tmp_path, f"{V2}{hooks}command: vllm serve m\n")
    assert "s3cret" not in "".join(notes) + (tmp_path / "written.yaml").read_text()


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        (f"{V1}command: vllm serve m\n", "eugr v1"),
        (f"{V1}model: o/m\nnotes: x\ncommand: vllm serve o/m --a '{{{{}}}}'\n", "eugr v1"),
        (f"{V1}model: o/m\ncommand: vllm serve {{model}}\n", "sparkrun"),
        (f"{V1}model: o/m\ncommand: |\n  vllm serve o/m --a '{{\"b\": 1}}'\n", "sparkrun"),
        (f"{V1}model: o/m\nmin_nodes: 2\ncommand: vllm serve o/m -tp 2\n", "sparkrun"),
        ("recipe_version: '1'\nmodel: o/m\ncontainer: i\ncommand: vllm serve o/m\n", "sparkrun"),
        ("recipe_version: 7\nname: x\nmodel: o/m\ncontainer: i\ncommand: vllm serve o/m\n", "sparkrun"),
        ("model: o/m\ncommand: vllm serve o/m\nruntime: vllm-ray\n", "sparkrun"),
    ],
)
def test_the_content_says_which_tools_a_recipe_is(tmp_path: Path, text: str, tool: str) -> None:
    assert imported(tmp_path, text)[0].source.startswith(f"{tool} recipe of ")


def test_a_folder_of_cluster_config_is_the_model_and_the_model_the_name(tmp_path: Path) -> None:
    folder = "cluster_config: {resolved_model_path: /srv/m}\n"
    for command in ("", "command: vllm serve {model}\n", "command: vllm serve {resolved_model_path}\n"):
        recipe, _ = imported(tmp_path, V2 + folder + command)
        assert (recipe.model.path, recipe.model.served_name) == ("/srv/m", "o/m")


def test_blank_lines_are_no_end_to_eugrs_launcher(tmp_path: Path) -> None:
    lines = ("vllm serve m \\", "", "  -tp 2 \\", "  \\", "  --distributed-executor-backend ray", "  --seed 1 \\")
    command = "".join(f"  {line}\n" for line in lines)
    assert imported(tmp_path, f"{V1}command: |\n{command}")[0].args == {"tensor-parallel-size": 2, "seed": 1}


def test_a_container_gets_no_more_rights_than_the_tool_gives_it(tmp_path: Path) -> None:
    eugrs = imported(tmp_path, f"{V1}command: vllm serve m -tp 2\n")[0].container
    assert (eugrs.privileged, eugrs.keeps_rights, eugrs.ipc) == (True, False, "host")
    for ranks, devices in ((1, ()), (2, ("/dev/infiniband",))):
        sparkruns = imported(tmp_path, f"{V2}command: vllm serve m -tp {ranks}\n")[0].container
        assert (sparkruns.privileged, sparkruns.no_new_privileges, sparkruns.devices) == (False, True, devices)
        assert (sparkruns.ipc, sparkruns.shm_bytes) == ("shareable", 32 * 2**30)
        limits = {name: (limit.soft, limit.hard) for name, limit in sparkruns.limits.items()}
        assert limits == {"memlock": (-1, -1), "stack": (67108864, 67108864), "nofile": (65535, 65535)}


def test_the_container_is_as_the_recipe_says(tmp_path: Path) -> None:
    text = "{shm_size: 1.5g, privileged: false, ipc: private, ulimit: memlock=-1, devices: [/dev/x], gpus: 2, user: u}"
    recipe, notes = imported(tmp_path, f"{V2}executor_config: {text}\ncommand: vllm serve m\n")
    container = recipe.container
    assert container.no_new_privileges
    assert (container.shm_bytes, container.privileged, container.ipc) == (1610612736, False, "private")
    assert (container.limits["memlock"].hard, container.devices) == (-1, ("/dev/x",))
    left_out = [note.partition("executor_config.")[2][:4] for note in notes if "executor_config" in note]
    assert left_out == ["gpus", "user"]
    text = "{privileged: yes, security_opt: [], devices: ['/dev/x:/dev/y'], volumes: [/a, '/b:/c:ro', 'd:/e']}"
    recipe, notes = imported(tmp_path, f"{V2}executor_config: {text}\ncommand: vllm serve m -tp 2\n")
    container = recipe.container
    assert (container.privileged, container.no_new_privileges) == (True, False)
    assert container.devices == ("/dev/infiniband",)
    assert [volume.source for volume in container.volumes] == ["/a", "/b"]
    assert sum("executor_config" in note for note in notes) == 2


def test_a_recipes_mounts_give_the_container_no_more_than_those_of_a_docker_line(tmp_path: Path) -> None:
    mounts = ["/:/host", "/var/run/docker.sock:/var/run/docker.sock", "/etc:/data", "./t:/t", "/data:/d"]
    executor = json.dumps({"volumes": mounts, "devices": ["/dev/mem", "/dev/ng0n1", "/dev/infiniband"]})
    recipe, notes = imported(tmp_path, f"{V2}executor_config: {executor}\ncommand: vllm serve o/m -tp 2\n")
    assert [volume.source for volume in recipe.container.volumes] == ["/data"]
    assert recipe.container.devices == ("/dev/infiniband",)
    left_out = [note.partition("executor_config.")[2].split()[1].rstrip(":") for note in notes if "executor_" in note]
    assert sorted(left_out) == sorted([*mounts[:4], "/dev/mem", "/dev/ng0n1"])
    one = f"{V2}executor_config: {{volumes: '/:/host'}}\ncommand: vllm serve o/m --chat-template /host/x.jinja\n"
    missing = convert.import_text(one, tmp_path / "x", {}, (), Place(), None).missing
    assert any("/:/host: left out" in line for line in missing)


@pytest.mark.parametrize(
    ("flag", "mount"),
    [
        ("--chat-template /host/x.jinja", "/:/host"),
        ("--chat-template={file}", "/:/host"),
        ("--chat-template /t/x.jinja", "./t:/t"),
        ("--chat-template /hosts/x.jinja", ""),
        ("--chat-template /mnt/data/x.jinja", ""),
    ],
)
def test_a_mount_that_is_left_out_and_that_a_flag_needs_is_missing(tmp_path: Path, flag: str, mount: str) -> None:
    executor = json.dumps({"volumes": ["/:/host", "/etc:/data", "./t:/t"]})
    text = f"{V2}executor_config: {executor}\ndefaults: {{file: /host/x.jinja}}\ncommand: vllm serve o/m {flag}\n"
    missing = convert.import_text(text, tmp_path / "given.yaml", {}, (), Place(), None).missing
    named = [line.partition("volumes: ")[2].partition(": left")[0] for line in missing if "executor_config" in line]
    assert named == ([mount] if mount else [])


def test_what_is_no_secret_becomes_no_file(tmp_path: Path) -> None:
    env = "{my-secret: x, HF_HUB_DISABLE_IMPLICIT_TOKEN: '1', LMCACHE_MODE: chunked}"
    recipe, notes = imported(tmp_path, f"{V2}env: {env}\ncommand: vllm serve o/m\n")
    assert recipe.secrets == {}
    assert recipe.env["LMCACHE_MODE"] == "chunked"
    assert sum("left out" in note for note in notes) == 2


def test_a_folder_gives_every_recipe_and_every_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "in/.hidden.yaml").write_text("[")
    (tmp_path / "in/Good One.yaml").write_text(f"{V2}command: vllm serve o/m\n")
    (tmp_path / "in/deep/good-one.yaml").write_text(f"{V2}command: vllm serve o/m\n")
    (tmp_path / "in/a.yaml").write_text("[")
    (tmp_path / "in/deep/b.yml").write_text("a: b\n")
    words = ["recipe", "import", str(tmp_path / "in"), "--write", str(tmp_path / "out")]
    assert main.main(words) == 78
    output = capsys.readouterr()
    written = [line for line in output.out.splitlines() if line.startswith("/")]
    assert written == [f"{tmp_path}/out/good-one.yaml", f"{tmp_path}/out/deep-good-one.yaml"]
    assert [line.split(": ")[1] for line in output.err.splitlines() if line.startswith("sparkd: ")] == [
        f"{tmp_path}/in/a.yaml",
        f"{tmp_path}/in/deep/b.yml",
    ]
    assert load_recipe("good-one", [tmp_path / "out"]).recipe.args == {}
    good = ["recipe", "import", str(tmp_path / "in/Good One.yaml"), "--write", str(tmp_path / "out")]
    assert main.main(good) == 78
    assert "exists already (--force writes over it)" in capsys.readouterr().err
    assert main.main([*good, "--force"]) == 10, "nobody has its image"


def test_the_command_prints_the_recipe_to_stdout_and_notes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["recipe", "import", str(SPARKRUN), "-o", "port=9000"]) == 10, "its mods are not there"
    output = capsys.readouterr()
    assert "\n  port: 9000\n" in output.out
    assert f"{SPARKRUN}: line 14: mods: " in output.err
    assert main.main(["recipe", "import", str(EUGR), "-o", "port"]) == 2


KEYS = st.sampled_from(
    ["recipe_version", "name", "model", "container", "command", "defaults", "env", "mods", "build_args", "pre_exec",
     "runtime", "mode", "min_nodes", "max_nodes", "executor_config", "runtime_config", "metadata", "x"]
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["1", "2", "vllm", "vllm serve m", "vllm serve {x} --a '{y}'", "{{x}}", "{", "a: b", "\ud83d", "~"]
    ),
    st.text("{}x:'\"\\\n $-=,*m ", max_size=20).map(lambda tail: f"vllm serve m {tail}"),
)
VALUES = st.recursive(
    TEXTS | st.integers() | st.floats() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | KEYS, inner, max_size=4),
    max_leaves=8,
)
SOUND = {"recipe_version": "1", "name": "n", "container": "i", "model": "m", "command": "vllm serve m"}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples: a new one for each takes longer than the example."""
    return tmp_path_factory.mktemp("desk")


@settings(max_examples=100, deadline=None)
@given(
    text=st.one_of(
        st.text(max_size=200),
        st.dictionaries(KEYS, VALUES, max_size=8).map(json.dumps),
        st.tuples(st.sampled_from("12"), st.dictionaries(KEYS, VALUES, max_size=3)).map(
            lambda some: json.dumps({**SOUND, "recipe_version": some[0], **some[1]})
        ),
    )
)
def test_any_file_gives_a_recipe_or_a_fault_with_its_line(desk: Path, text: str) -> None:
    try:
        imported(desk, text.encode("utf-8", "replace").decode())
    except ConfigError as error:
        assert str(error).startswith(f"{desk}/given.yaml: ")
        assert str(error).isprintable()


@settings(max_examples=300, deadline=None)
@given(st.text("{}ab\n ", max_size=30))
def test_sparkruns_placeholders_are_those_of_its_own_rule(text: str) -> None:
    known = {"a": "1", "b": "{a}", "ab": '{"c": {a}}', "aa": "{{x}}", "bb": None}
    try:
        ours = substitute(text, Values(known))
    except CommandError:
        assert re.search(r"\{[abx]+\}", foreign.filled(text, known))
    else:
        assert shown(ours) == foreign.filled(text, known)


def test_one_nodes_address_for_all_is_left_out(tmp_path: Path) -> None:
    env = "env: {VLLM_HOST_IP: 192.168.1.11, MASTER_ADDR: spark-1, GLOO_SOCKET_IFNAME: bond0, UCX_TLS: rc}\n"
    for start in (V1, V2):
        recipe, notes = imported(tmp_path, f"{start}{env}command: vllm serve o/m -tp 2\n")
        own = foreign.OF_SPARKRUN if start == V2 else {}
        assert recipe.env == {"GLOO_SOCKET_IFNAME": "bond0", "UCX_TLS": "rc", **own}
        assert [note.partition(": ")[2] for note in notes if "rank" in note] == [
            f"line 4: env.{name}: left out: sparkd sets what a node's rank needs"
            for name in ("VLLM_HOST_IP", "MASTER_ADDR")
        ]
        assert imported(tmp_path, f"{start}{env}command: vllm serve o/m\n")[0].env["MASTER_ADDR"] == "spark-1"
