"""Services of a compose file, with its `.env`."""

import os
from pathlib import Path

import pytest
from tests.unit.started_engines import COMPOSE, IMAGE, LINE, UNIT, imported

from sparkd.base.lib.errors import ConfigError
from sparkd.base.recipes.schema import Volume
from sparkd.tools.importers.forms import read_form


def test_each_key_of_a_service_is_taken_or_noted_with_its_line(tmp_path: Path) -> None:
    text = f"""\
x-common: &common
  ipc: host
  environment: &env {{A: "1", B: "${{B:-2}}", C: $$HOME, D: "${{UNSET}}"}}
services:
  db: {{image: "postgres:16", environment: {{POSTGRES_PASSWORD: pg-password-1}}}}
  vllm:
    <<: *common
    image: {IMAGE}
    ports: ["8001:8000", {{published: 7, target: 7}}]
    volumes:
      - {{type: bind, source: ./data, target: /data, read_only: true}}
      - hub:/root/.cache/huggingface
      - other:/other
    cap_add: [IPC_LOCK]
    build: .
    env_file: [.env, more.env]
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, count: all, capabilities: [gpu]}}]}}}}}}
    healthcheck: {{test: [CMD, "true"]}}
    sysctls: {{net.core.somaxconn: 1024}}
    command: ["--model", "org/m", "--max-model-len", "${{LEN}}"]
volumes: {{hub: {{}}}}
"""
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / ".env").write_text("# none\nexport LEN='4096'\nFROM_FILE=\"x y\"\n")
    result = imported(tmp_path, text)
    assert result.recipe.args == {"max-model-len": 4096, "port": 8001}
    assert result.recipe.env == {"A": "1", "B": "2", "C": "$HOME", "LEN": "4096", "FROM_FILE": "x y"}
    assert result.recipe.container.volumes == (Volume(source=f"{tmp_path}/0/data", target="/data", read_only=True),)
    assert [note.partition(": left out")[0].partition(": not read")[0] for note in result.notes] == [
        "line 3: D", "line 9: --publish 7:7", "line 12: --volume hub:/root/.cache/huggingface",
        "line 13: --volume other:/other", "line 14: --cap-add IPC_LOCK",
        "line 15: build: not done: where no registry has the image, `docker compose build` makes it",
        "line 16: env_file: more.env", "line 19: sysctls",
    ]  # fmt: skip


def test_a_port_of_an_ipv6_address_is_the_engines(tmp_path: Path) -> None:
    ports = "    ports: [{target: 8000, published: 9000, host_ip: '::1'}]\n"
    result = imported(tmp_path, COMPOSE + ports)
    assert result.recipe.args == {"host": "::1", "port": 9000}
    assert result.notes == []


@pytest.mark.parametrize("published", ["0", "65536"])
def test_a_port_that_cannot_be_is_left_out(published: str, tmp_path: Path) -> None:
    result = imported(tmp_path, f"{COMPOSE}    ports: ['{published}:8000']\n")
    assert result.recipe.args == {}
    assert [note.partition(": left out")[0] for note in result.notes] == [f"line 5: --publish {published}:8000"]


def test_an_env_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    """Root imports a user's compose file, and finds in the folder that the user has put there a file of root's."""
    path, other = tmp_path / "compose.yaml", os.getuid() + 1
    text = COMPOSE + "    environment: {D: '${DB_PASS}'}\n"
    (tmp_path / ".env").write_text("DB_PASS=k3pt\n")
    with pytest.raises(ConfigError, match=r"\.env: is of uid \d+, what reads it of \d+: its values are not taken"):
        read_form(text, path, {}, owner=other)


def test_a_linked_env_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("DB_PASS=k3pt\n")
    (tmp_path / ".env").symlink_to("elsewhere")
    text = COMPOSE + "    environment: {D: '${DB_PASS}'}\n"
    form = read_form(text, tmp_path / "compose.yaml", {}, owner=os.getuid())
    assert form is not None
    assert "k3pt" not in repr(form)


def test_an_anchor_of_a_compose_file_may_be_defined_again(tmp_path: Path) -> None:
    text = COMPOSE + "    environment: {A: &x 1, B: *x, C: &x 2, D: *x}\n"
    assert imported(tmp_path, text).recipe.env == {"A": "1", "B": "1", "C": "2", "D": "2"}


def test_an_env_file_has_escapes_in_double_quotes_and_its_values_of_several_lines_are_named(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / ".env").write_text(r"""A="{\"a\": \"b\\\\c\nd\"}" # x
B='\"\n'
C="a
b"
""")
    result = imported(tmp_path, f"{COMPOSE}    env_file: .env\n")
    assert result.recipe.env == {"A": '{"a": "b\\\\c\nd"}', "B": r"\"\n"}
    assert result.notes == ["line 5: C: left out: what $C stands for is not known: write its value under env"]


def test_an_env_file_may_be_named_in_the_long_form(tmp_path: Path) -> None:
    text = COMPOSE + "    env_file: [{path: .env, required: false}, {path: more.env, required: false}]\n"
    more = ["line 5: env_file: more.env: not read: write its variables under env, secrets under secrets"]
    conversion = imported(tmp_path, text)
    assert conversion.recipe.env == {}
    assert conversion.notes == more
    (tmp_path / "0" / ".env").write_text("A=1\n")
    conversion = imported(tmp_path, text)
    assert conversion.recipe.env == {"A": "1"}
    assert conversion.notes == more


def test_a_service_that_is_only_built_has_the_image_that_compose_makes(tmp_path: Path) -> None:
    ui = "  ui: {build: ui, env_file: ui.env, command: [--config, /x.yaml]}\n"
    built = COMPOSE.replace(f"image: {IMAGE}", "build: .").replace("--model", "vllm serve")
    built += f"    ports: ['8000:8000']\n{ui}"
    result = imported(tmp_path, "name: My.vllm\n" + built)
    assert result.recipe.image.ref == "myvllm-vllm"
    assert result.notes == [
        "line 4: build: not done: where no registry has the image, `docker compose build` makes it",
        "line 5: container: myvllm-vllm: no registry has it, nor is a build known: build it first",
    ], "none of the other service"
    (tmp_path / "Own-vLLM").mkdir()
    form = read_form(built, tmp_path / "Own-vLLM" / "compose.yml", {}, owner=os.getuid())
    assert form
    assert [launch.image for launch in form.launches] == ["own-vllm-vllm", "own-vllm-ui"]
    assert imported(tmp_path, "name: ${P:-foo}\n" + built).recipe.image.ref == "foo-vllm"
    with pytest.raises(ConfigError, match="names no image to run it in"):
        imported(tmp_path, "name: $P\n" + built)
    (tmp_path / "0" / ".env").write_text("COMPOSE_PROJECT_NAME=bar\n")
    assert imported(tmp_path, "name: foo\n" + built).recipe.image.ref == "bar-vllm"


@pytest.mark.parametrize(
    ("more", "is_noted"),
    [
        ("    expose: ['8000']\n  web: {image: a}\n", True),
        ("    ports: ['8000:8000']\n  web: {image: a}\n", False),
        ("    network_mode: host\n  web: {image: a}\n", False),
        ("", False),
    ],
)
def test_an_engine_that_other_services_alone_reach_is_noted(tmp_path: Path, more: str, *, is_noted: bool) -> None:
    note = "line 4: ports: none, yet the whole network will reach the engine: args.host 127.0.0.1 keeps it on the node"
    assert imported(tmp_path, COMPOSE + more).notes == [note] * is_noted


def test_one_service_is_named(tmp_path: Path) -> None:
    text = COMPOSE + f"  b:\n    image: {IMAGE}\n    command: --model org/b\n"
    assert imported(tmp_path, text, service="b").recipe.model.repo == "org/b"
    with pytest.raises(ConfigError, match="no service is named c: vllm, b"):
        imported(tmp_path, text, service="c")


@pytest.mark.parametrize(
    "start", ["# what\n\n", "---\n", "%YAML 1.2\n---\n", "version: '3'\n", "\r\nx-a: &a\n  b: 1\r\n"]
)
def test_a_compose_file_may_begin_otherwise(start: str, tmp_path: Path) -> None:
    assert "(compose)" in imported(tmp_path, start + COMPOSE).text


def test_what_a_compose_file_includes_is_named_as_not_read(tmp_path: Path) -> None:
    notes = imported(tmp_path, f"include: [other.yaml]\n{COMPOSE}").notes
    assert notes == ["line 1: include: not read: write what the engine needs of it into this file"]
    assert imported(tmp_path, f"include: []\n{COMPOSE}").notes == []


def test_what_compose_and_systemd_merge_into_a_file_is_named_as_not_read(tmp_path: Path) -> None:
    beside = tmp_path / "0"
    (beside / "given.d").mkdir(parents=True)
    (beside / "docker-compose.override.yml").touch()
    (beside / "given.d" / "a.conf").touch()
    text = "line 1: {}: not read, and may change this: import what `{}` prints"
    assert imported(tmp_path, COMPOSE).notes == [text.format("docker-compose.override.yml", "docker compose config")]
    unit = f"{UNIT}ExecStart=/usr/bin/{LINE}\n"
    assert imported(tmp_path, unit).notes == [text.format("a.conf", "systemctl cat given")]
    assert imported(tmp_path, LINE).notes == []


def test_yes_is_text_in_a_compose_file_but_switches_what_is_on_or_off(tmp_path: Path) -> None:
    text = f"{COMPOSE}    environment: {{A: yes, B: off, C: true}}\n    init: yes\n    privileged: yes\n"
    mount = "    volumes: [{type: bind, source: /srv/x, target: /x, read_only: yes}]\n"
    recipe = imported(tmp_path, text + mount).recipe
    assert recipe.container.volumes[0].read_only
    assert recipe.env == {"A": "yes", "B": "off", "C": "true"}
    assert recipe.container.init and recipe.container.privileged


def test_no_tool_builds_an_image_that_a_compose_file_builds_itself(tmp_path: Path) -> None:
    text = COMPOSE.replace(IMAGE, "vllm-node-tf5-mine") + "    build: .\n"
    result = imported(tmp_path, text)
    assert result.recipe.image.build == ""
    assert any("vllm-node-tf5-mine: no registry has it, nor is a build known" in note for note in result.notes)
