"""Secrets of what starts vLLM become files, and stand in no recipe, note or fault."""

from pathlib import Path

import pytest
from tests.unit import published_recipes
from tests.unit.published_recipes import SERVES, V1, V2
from tests.unit.started_engines import COMPOSE, IMAGE, LINE, SECRET, UNIT, imported

from sparkd.base.lib.errors import ConfigError
from sparkd.tools.importers.bundle import Place
from sparkd.tools.importers.convert import import_text


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            f"docker run -e HF_TOKEN={SECRET} -e OPENAI_API_KEY={SECRET} {IMAGE} --model org/m --api-key {SECRET}",
            ["HF_TOKEN", "OPENAI_API_KEY", "VLLM_API_KEY"],
        ),
        (f"T={SECRET}\ndocker run -e HF_TOKEN=$T {IMAGE} sh -c 'curl -u a:{SECRET} x; vllm serve org/m'", ["HF_TOKEN"]),
        (f"{COMPOSE}    environment: [HF_TOKEN={SECRET}]\n", ["HF_TOKEN"]),
        (f"{COMPOSE}    environment: {{HUGGING_FACE_HUB_TOKEN: {SECRET}}}\n", ["HUGGING_FACE_HUB_TOKEN"]),
        (
            f"{UNIT}Environment=HF_TOKEN={SECRET}\nExecStart=/usr/bin/docker run -e HF_TOKEN {IMAGE} --model org/m\n",
            ["HF_TOKEN"],
        ),
        (f"docker run {IMAGE} env -u A HF_TOKEN={SECRET} vllm serve org/m", ["HF_TOKEN"]),
        (f"docker run {IMAGE} bash -lc 'nice env HF_TOKEN={SECRET} vllm serve org/m'", ["HF_TOKEN"]),
    ],
)
def test_a_secret_becomes_a_file_and_is_nowhere(text: str, names: list[str], tmp_path: Path) -> None:
    result = imported(tmp_path, text)
    assert result.recipe.secrets == {name: f"/etc/sparkd/{name.lower()}" for name in names}
    assert SECRET not in result.text + "".join(result.notes)
    for path in result.recipe.secrets.values():
        assert f"sudo install -m 600 /dev/stdin {path}" in result.text


@pytest.mark.parametrize("form", [V1, V2], ids=["eugr", "sparkrun"])
def test_a_secret_in_a_published_form_becomes_a_file_also_by_a_further_name_or_by_its_value(
    root: Path, form: str
) -> None:
    env = f'{{LANGFUSE_SECRET_KEY: {SECRET}, HTTPS_PROXY: "http://u:{SECRET}@proxy:3128", MAX_TOKENS: 5}}'
    recipe, result = published_recipes.imported(root, f"{form}{SERVES}env: {env}\n")
    names = ("HTTPS_PROXY", "LANGFUSE_SECRET_KEY")
    assert recipe.secrets == {name: f"/etc/sparkd/{name.lower()}" for name in names}
    assert recipe.env["MAX_TOKENS"] == "5"
    assert SECRET not in result.text + "".join(result.notes)


@pytest.mark.parametrize("form", [V1, V2], ids=["eugr", "sparkrun"])
def test_a_secret_in_a_published_form_gets_into_no_flag_and_no_other_variable(root: Path, form: str) -> None:
    command = "command: export OTHER=$LANGFUSE_SECRET_KEY; vllm serve o/m --seed 1 --foo $LANGFUSE_SECRET_KEY\n"
    recipe, result = published_recipes.imported(root, f"{form}{command}env: {{LANGFUSE_SECRET_KEY: {SECRET}}}\n")
    assert (recipe.args, recipe.env.get("OTHER")) == ({"seed": 1}, None)
    assert any("--foo: left out" in line for line in result.missing)
    assert SECRET not in result.text + "".join(result.notes)


@pytest.mark.parametrize(
    "start",
    [
        f"docker run -e LANGFUSE_SECRET_KEY -e O=x-$LANGFUSE_SECRET_KEY {IMAGE} --model org/m",
        f"docker run -e LANGFUSE_SECRET_KEY -e O=$LANGFUSE_SECRET_KEY {IMAGE} --model org/m --foo $LANGFUSE_SECRET_KEY",
        f"docker run -e LANGFUSE_SECRET_KEY -e O=x-$LANGFUSE_SECRET_KEY {IMAGE} bash -c 'vllm serve org/m --foo $O'",
    ],
)
def test_the_secret_of_a_script_gets_into_no_flag_and_no_plain_variable(start: str, tmp_path: Path) -> None:
    result = imported(tmp_path, f"export LANGFUSE_SECRET_KEY={SECRET}\n{start}\n")
    assert ([*result.recipe.secrets], result.recipe.args) == (["LANGFUSE_SECRET_KEY", "O"], {})
    assert SECRET not in result.text + "".join(result.notes)


@pytest.mark.parametrize("form", [V1, V2], ids=["eugr", "sparkrun"])
def test_a_switch_is_no_secret_and_a_secret_of_the_shells_has_a_single_note(root: Path, form: str) -> None:
    env = "{RAY_AUTH_MODE: disabled, DISABLE_AUTH: 'yes', LANGFUSE_SECRET_KEY: $LANGFUSE_SECRET_KEY}"
    recipe, result = published_recipes.imported(root, f"{form}{SERVES}env: {env}\n")
    assert (recipe.env["RAY_AUTH_MODE"], recipe.env["DISABLE_AUTH"]) == ("disabled", "yes")
    assert [note.split(": ")[-1] for note in result.notes if "LANGFUSE" in note] == [
        "put it into /etc/sparkd/langfuse_secret_key"
    ]


def test_a_path_or_word_that_a_secret_has_for_its_value_stays_elsewhere(tmp_path: Path) -> None:
    variables = "-e TLS_KEY=/certs/a.key -e DIR=/certs/a.key -e X_TOKEN=auto"
    recipe = imported(tmp_path, f"docker run {variables} {IMAGE} --model org/m --tokenizer-mode auto").recipe
    assert ([*recipe.secrets], recipe.env) == (["TLS_KEY", "X_TOKEN"], {"DIR": "/certs/a.key"})
    assert recipe.args == {"tokenizer-mode": "auto"}


def test_a_variable_of_the_script_alone_is_taken_whatever_its_name(tmp_path: Path) -> None:
    result = imported(tmp_path, f"export MODEL_KEY=org/m\nbash -c 'docker run {IMAGE} --model $MODEL_KEY'")
    assert (result.recipe.model.repo, result.notes) == ("org/m", [])


def test_a_token_in_the_overrides_of_a_configuration_is_left_out_and_its_numbers_stay(tmp_path: Path) -> None:
    line = f"docker run {IMAGE} --model org/m --hf-overrides "
    numbers = '{"eos_token_id": 151645, "pad_token": "<pad>"}'
    conversion = imported(tmp_path, f"{line}'{numbers}'")
    assert conversion.recipe.args == {"hf-overrides": numbers}
    assert conversion.notes == []
    conversion = imported(tmp_path, line + f"""'{{"token": "hf_{SECRET}"}}'""")
    assert conversion.recipe.args == {}
    assert conversion.notes == ["line 1: --hf-overrides: left out: its value looks like a secret"]


def test_a_fault_names_no_secret(tmp_path: Path) -> None:
    result = imported(tmp_path, f"docker run {IMAGE} --model org/m --hf-token {SECRET} stray --x $Y")
    assert SECRET not in "".join(result.notes) + result.text
    with pytest.raises(ConfigError) as fault:
        imported(tmp_path, f"docker run {IMAGE} --model $Y --hf-token {SECRET} stray")
    assert SECRET not in str(fault.value)
    with pytest.raises(ConfigError, match=r"line 1: image.ref = .*@registry.example/vllm:1") as fault:
        imported(tmp_path, f"docker run https://bob:{SECRET}@registry.example/vllm:1 vllm serve org/m")
    assert SECRET not in str(fault.value)


@pytest.mark.parametrize(
    "head",
    [
        "recipe_version: '1'\nname: x\ncontainer: r/i:1\n",
        f"""\
recipe_version: '2'
model: org/m
container: r/i:1
executor_config: {{env: [X_KEY={SECRET}]}}
builder: x
builder_config: {{token: {SECRET}}}
""",
    ],
)
def test_a_recipes_variable_is_a_secret_by_its_name_or_its_value(head: str) -> None:
    env = (
        f"{{OPENAI_KEY: {SECRET}, HTTPS_PROXY: 'http://u:{SECRET}@proxy:1', X: hf_{SECRET}, Y_KEY: '$Y_KEY', KEYS: 5}}"
    )
    text = f"{head}command: vllm serve org/m\nenv: {env}\n"
    result = import_text(text, Path("r.yaml"), {}, (), Place(), None)
    for name in ("OPENAI_KEY", "HTTPS_PROXY", "X", "Y_KEY"):
        assert f"  {name}: /etc/sparkd/{name.lower()}\n" in result.text
    assert "  KEYS: '5'\n" in result.text
    assert SECRET not in result.text + "".join(result.notes)


@pytest.mark.parametrize("name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_the_token_is_there_before_the_model_is_pulled_with_it(name: str, tmp_path: Path) -> None:
    steps = imported(tmp_path, f"docker run -e {name} {IMAGE} --model org/m\n").steps
    pull = next(number for number, step in enumerate(steps) if "model pull" in step)
    assert steps[pull - 1].startswith(f"sudo install -m 600 /dev/stdin /etc/sparkd/{name.lower()}")
    assert steps[pull].endswith(f"m.yaml --token-file /etc/sparkd/{name.lower()}")


@pytest.mark.parametrize(
    "text",
    [
        f"{UNIT}ExecStartPre=curl -H 'Authorization: Bearer {SECRET}' x\nExecStart={LINE}\n",
        LINE.replace("--gpus", f"--mount type=volume,volume-opt=o=username=u,password={SECRET},target=/x --gpus"),
    ],
)
def test_a_note_on_what_is_left_out_names_no_secret(text: str, tmp_path: Path) -> None:
    result = imported(tmp_path, text)
    assert result.notes
    assert SECRET not in "".join(result.notes) + result.text
