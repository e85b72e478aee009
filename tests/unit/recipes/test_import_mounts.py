"""Mounts of a start: the model that lies in one, the node that one would reach, and what the engine loses."""

import os
import pwd
from pathlib import Path

import pytest
from tests.unit.started_engines import COMPOSE, IMAGE, UNIT, imported

from sparkd.base.lib.errors import ConfigError
from sparkd.base.recipes.schema import Model
from sparkd.tools.importers.bundle import Place
from sparkd.tools.importers.convert import import_text

SNAPSHOT = f"hub/models--a--b/snapshots/{'0' * 40}"


def test_a_folder_is_the_model_where_the_images_entrypoint_is_the_engine(tmp_path: Path) -> None:
    line = f"docker run -v {tmp_path}/m:/model {{}} /model --seed 1"
    assert imported(tmp_path, line.format(IMAGE)).recipe.model.path == f"{tmp_path}/m"
    with pytest.raises(ConfigError, match="starts no vLLM server by itself"):
        imported(tmp_path, line.format("own/vllm:1"))  # may be a program


def test_a_folder_of_models_is_no_loss_where_sparkd_mounts_the_model_itself(tmp_path: Path) -> None:
    line = f"\ndocker run -v {{}}:/models {IMAGE} --model /models/m"
    (tmp_path / "m").mkdir()
    result = imported(tmp_path, line.format(tmp_path))
    assert result.recipe.model.path == f"{tmp_path}/m"
    assert result.recipe.model.served_name == "/models/m", "as clients name it"
    assert result.notes == [f"line 2: model: no repository is named: it is read from {tmp_path}/m"]
    (loss,) = imported(tmp_path, f"{line.format(tmp_path)} --chat-template /models/x.jinja").missing
    assert loss.endswith(":/models: left out: /models in the container is sparkd's own: choose another")
    losses = imported(tmp_path, line.format("named")).notes
    assert any(loss.startswith("line 2: --volume named:/models: left out: it is no folder") for loss in losses)


@pytest.mark.parametrize(("name", "mode"), [("m", 0), ("m" * 300, 0o700)], ids=["of another user", "too long a name"])
def test_an_unreadable_folder_is_no_error(tmp_path: Path, name: str, mode: int) -> None:
    uid, line = os.geteuid(), f"docker run {IMAGE} --model {tmp_path}/{name}"
    tmp_path.chmod(mode)
    os.seteuid(uid if mode or uid else 65534)
    try:
        (missing,) = import_text(line, Path("x"), {}, (), Place(), None).missing
    finally:
        os.seteuid(uid)
        tmp_path.chmod(0o700)
    assert missing == f"x: line 1: model: no repository is named: put it into {tmp_path}/{name}"


@pytest.mark.parametrize(
    ("script", "source"),
    [
        ("{}", "0/x"),
        ("cd ../w || exit 1\n{}", "w/x"),
        ("(cd ../w && {})", "w/x"),
        ("pushd ../w\n{}", "w/x"),
        ('cd "$(dirname "$(readlink -f "$0")")"/../w\n{}', "w/x"),
        ('cd "$(dirname "$(realpath $0)")"\n{}', "0/x"),
        ('main() {{\ncd "$(dirname "$0")"\n{}\n}}\nmain', "0/x"),
        ('cd "$(readlink -f ../link)"\n{}', "w/x"),
        ("cd ../w; bash -c '{}'", "w/x"),
        ("cd ../w; docker run -d -v ./x:/x a:1 sleep 9\ncd /; docker exec a vllm serve org/m --seed 1", "w/x"),
        ("cd $D\n{}", ""),
        ("pushd ../w; popd\n{}", ""),
        (f"{UNIT}WorkingDirectory=/srv/w\nExecStart=/usr/bin/{{}}", "/srv/w/x"),
        (f"{UNIT}ExecStart=/usr/bin/{{}}", ""),
    ],
)
def test_a_relative_mount_begins_in_the_folder_of_its_command(script: str, source: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("w")
    result = imported(tmp_path, script.format(f"docker run -v ./x:/x {IMAGE} --model org/m"))
    sources = [volume.source for volume in result.recipe.container.volumes]
    assert sources == [str(tmp_path / source)] * bool(source)
    assert [note.partition(": ")[2] for note in result.notes if "--volume" in note] == [
        "--volume ./x:/x: left out: it is no folder of the node: name one by its absolute path under container.volumes"
    ] * (not source)


def test_a_snapshot_in_the_hubs_cache_of_any_user_is_its_repository(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    mount = f"-v /home/u/.cache/huggingface/hub/models--org--M-1--x:/m:ro {IMAGE}"
    conversion = imported(tmp_path, f"docker run {mount} --model /m/snapshots/{commit}")
    assert conversion.recipe.name == "m-1--x"
    assert conversion.recipe.model == Model(
        path="M-1--x", repo="org/M-1--x", revision=commit, served_name=f"/m/snapshots/{commit}"
    )
    assert conversion.notes == []


def test_a_mount_below_models_counts_for_its_content(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    line = f"docker run -v /srv:/models -v {tmp_path}:/models/big {IMAGE} --model /models/big/m"
    result = imported(tmp_path, line)
    assert result.recipe.model.path == f"{tmp_path}/m", "the innermost mount has it"
    assert result.notes == [f"line 1: model: no repository is named: it is read from {tmp_path}/m"]
    draft = """-v /srv/d:/models/d:ro {} --speculative-config '{{"method": "eagle3", "model": "/models/d"}}'"""
    (loss,) = imported(tmp_path, f"docker run {draft.format(IMAGE)} --model org/m").missing
    assert loss.startswith("line 1: --volume /srv/d:/models/d:ro: left out: /models/d in the container is sparkd's own")


@pytest.mark.parametrize(
    "option",
    ["-v /:/host", "-v /var/run/docker.sock:/var/run/docker.sock", "-v /etc:/etc-of-node",
     f"-v {'../' * 20}etc:/x", "--mount type=bind,source=/root/.ssh,target=/keys", "--device /dev/sda", "--pid host",
     "--cap-add SYS_ADMIN",
     "-v /a\x1b[31m:/b", "--network bridge", "--env-file /etc/shadow"],
)  # fmt: skip
def test_what_reaches_too_far_is_left_out_and_named(option: str, tmp_path: Path) -> None:
    result = imported(tmp_path, f"docker run {option} {IMAGE} --model org/m")
    assert result.recipe.container.model_dump(exclude_unset=True) == {}
    assert len(result.notes) == 1
    assert result.notes[0].startswith("line 1: --")
    assert "\x1b" not in result.text + result.notes[0]


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ("", "bash -c 'pip install x && vllm serve org/m'"),
        ("-v named:/t", "vllm serve org/m --chat-template /t/x.jinja"),
        ("-v named:/t", "vllm serve org/m --chat-template=/t/x.jinja"),
        ("-v x:/root/.cache/vllm", "--model org/m --chat-template /root/.cache/vllm/x.jinja"),
        ("-v x:/hf -e HF_HOME=/hf", f"--model org/m --tokenizer /hf/{SNAPSHOT}"),
        ("-v x:/hf -e HF_HOME=/hf", """--model org/m -sc '{"model":"/hf/d"}'"""),
    ],
)
def test_a_loss_is_missing_where_the_engine_needs_it(options: str, command: str, tmp_path: Path) -> None:
    assert len(imported(tmp_path, f"docker run {options} {IMAGE} {command}\n").missing) == 1


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ("", "bash -c 'cd /x; echo up; vllm serve org/m 2>&1 | tee log'"),
        ("", "bash -c 'vllm serve org/m & curl localhost; wait'"),
        ("-v named:/t", "vllm serve org/m --chat-template /other/x.jinja"),
        ("-v x:/root/.cache/vllm", """--model org/m -cc '{"cache_dir":"/root/.cache/vllm"}'"""),
        ("-v x:/hf -e HF_HOME=/hf", f"""--model org/m -sc '{{"model":"/hf/{SNAPSHOT}"}}'"""),
        ("-v x:/hf -e HF_HOME=/hf", f"--model org/m --speculative-config.model /hf/{SNAPSHOT}"),
        ("-v hub:/root/.cache/huggingface --env-file x --cpus 4", "vllm serve org/m"),
    ],
)
def test_a_loss_that_the_engine_does_without_is_not_missing(options: str, command: str, tmp_path: Path) -> None:
    assert imported(tmp_path, f"docker run {options} {IMAGE} {command}\n").missing == []


def test_a_folder_above_and_an_assigned_home_are_found(tmp_path: Path) -> None:
    text = f"D=~/d\ndocker run -v ../up:/up -v ./x:/x -v $D:/d {IMAGE} --model org/m\n"
    volumes = imported(tmp_path, text).recipe.container.volumes
    assert [volume.source for volume in volumes] == [f"{tmp_path}/up", f"{tmp_path}/0/x", f"{Path.home()}/d"]


@pytest.mark.skipif(os.geteuid() != 0, reason="sudo makes its command root's")
@pytest.mark.parametrize(
    "text",
    [
        f"docker run -v ~/t:/t {IMAGE} --model org/m\n",
        f'docker run -v "$HOME/t:/t" {IMAGE} --model org/m\n',
        f"{COMPOSE}    volumes: ['~/t:/t']\n",
        f"{COMPOSE}    volumes: ['${{HOME}}/t:/t']\n",
        f"{UNIT}ExecStart=/usr/bin/docker run -v %h/t:/t {IMAGE} --model org/m\n",
    ],
)
def test_under_sudo_the_home_is_that_of_who_runs_it(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for user, home in (("nobody", pwd.getpwnam("nobody").pw_dir), ("no-such-user", str(Path.home()))):
        monkeypatch.setenv("SUDO_USER", user)
        assert imported(tmp_path, text).recipe.container.volumes[0].source == f"{home}/t"


@pytest.mark.parametrize("more", ["User=www-data\n", "[Install]\nWantedBy=multi-user.target\n"])
def test_the_home_in_a_unit_of_the_system_is_roots(more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "nobody")
    text = f"{UNIT}ExecStart=/usr/bin/docker run -v %h/t:/t {IMAGE} --model org/m\n"
    assert imported(tmp_path, text + more).recipe.container.volumes[0].source == "/root/t"
