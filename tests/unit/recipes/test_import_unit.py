"""Units of systemd that start vLLM, or a script that does."""

import pwd
from pathlib import Path

import pytest
from tests.unit.started_engines import IMAGE, LINE, UNIT, imported

from sparkd.base.lib.errors import ConfigError


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("/usr/bin/docker exec vllm_ds4 bash /workspace/x.sh", "/workspace/x.sh"),
        ("/opt/vllm/run.sh --port 1", "/opt/vllm/run.sh"),
        ("/bin/bash -l /opt/vllm/start", "/opt/vllm/start"),
        ("/bin/bash -lc /opt/vllm/start", "/opt/vllm/start"),
        ("/opt/vllm/run.sh -c x", "/opt/vllm/run.sh"),
        ("/usr/bin/docker compose --env-file /opt/.env -f /opt/vllm/compose.yaml up", "/opt/vllm/compose.yaml"),
        ("/usr/bin/docker-compose --file /opt/a.yml -f /opt/b.yml up", "/opt/a.yml"),
        ("/usr/bin/trtllm-serve m --extra_llm_api_options /tmp/extra.yml --run /x.sh", "/x.sh"),
    ],
)
def test_of_a_unit_that_runs_a_script_the_script_is_to_be_imported(command: str, script: str, tmp_path: Path) -> None:
    fault = f"given: line 4: starts no vLLM server by itself, but runs {script}: import that file by its path"
    text = f"{UNIT}ExecStart={command}\n"
    with pytest.raises(ConfigError, match=fault):
        imported(tmp_path, text)
    assert imported(tmp_path, text, "vllm serve org/m", image=IMAGE).recipe.model.repo == "org/m"


def test_a_unit(tmp_path: Path) -> None:
    text = f"""\
{UNIT}Environment="A=1 2" 'PORT=9000'
EnvironmentFile=-/etc/default/vllm
ExecStartPre=-/usr/bin/docker rm -f vllm
ExecStartPre=/usr/local/bin/warm
ExecStart=/usr/bin/docker run --rm \\
    -e PCT=100%% -e A \\
    {IMAGE} --model org/m --port ${{PORT}}
ExecStop=/usr/bin/docker stop vllm
[Install]
WantedBy=multi-user.target
"""
    result = imported(tmp_path, text)
    assert result.recipe.args == {"port": 9000}
    assert result.recipe.env == {"PCT": "100%", "A": "1 2"}
    assert [note.partition("=")[0] for note in result.notes] == ["line 5: EnvironmentFile", "line 7: ExecStartPre"]


def test_what_a_unit_sets_counts_wherever_it_stands(tmp_path: Path) -> None:
    text = f"{UNIT}ExecStart=/opt/vllm serve $MODEL\nEnvironment=A=1\n# a drop-in\n[Service]\nEnvironment=MODEL=org/m\n"
    result = imported(tmp_path, text, image=IMAGE)
    assert (result.recipe.model.repo, result.recipe.env) == ("org/m", {"A": "1", "MODEL": "org/m"})


@pytest.mark.parametrize(
    ("user", "home"),
    [
        ("daemon", pwd.getpwnam("daemon").pw_dir),
        ("1", pwd.getpwuid(1).pw_dir),
        ("nobody-of-here", "${HOME}"),
        ("9" * 20, "${HOME}"),
    ],
)
def test_the_home_of_a_unit_with_a_user_is_that_users(tmp_path: Path, user: str, home: str) -> None:
    start = f"docker run -e A=${{HOME}}/a {IMAGE} --model org/m"
    text = imported(tmp_path, f"{UNIT}ExecStart=/usr/bin/{start}\nUser={user}\n").text
    assert f"{home} stands for" in text if home[0] == "$" else f"A: {home}/a" in text


def test_an_empty_value_of_a_unit_takes_back_those_before_it(tmp_path: Path) -> None:
    drop_in = f"[Service]\nEnvironment=\nExecStartPre=\nExecStart=\nExecStart=/usr/bin/{LINE} --seed 1\n"
    result = imported(tmp_path, f"{UNIT}Environment=A=1\nExecStartPre=/x\nExecStart=/usr/bin/{LINE} -e A\n{drop_in}")
    assert (result.recipe.args, result.recipe.env, result.notes) == ({"seed": 1}, {}, [])


def test_the_vllm_of_a_unit_is_the_images_own(tmp_path: Path) -> None:
    text = f"{UNIT}Environment=OMP_NUM_THREADS=8 PATH=/opt/vllm/bin:/bin\nExecStart=/opt/vllm/bin/vllm serve org/m\n"
    result = imported(tmp_path, text, image=IMAGE)
    assert result.notes == ["line 5: PATH: left out: the image has its own"]
    assert result.recipe.image.entrypoint == ("vllm", "serve")
    assert result.recipe.env == {"OMP_NUM_THREADS": "8"}


def test_the_path_of_a_vllm_in_a_container_is_kept(tmp_path: Path) -> None:
    text = f"docker run -d {IMAGE} sleep infinity\ndocker exec -d x /opt/vllm/bin/vllm serve org/m\n"
    assert imported(tmp_path, text).recipe.image.entrypoint == ("/opt/vllm/bin/vllm", "serve")


def test_an_engine_that_is_started_in_a_container_has_the_image_of_that_name(tmp_path: Path) -> None:
    other = "docker run -d --name web web:1\n"
    start = "docker exec -d x vllm serve org/m\n"
    result = imported(tmp_path, f"{other}docker run -d --name x -e A=1 {IMAGE} sleep infinity\n{start}")
    assert (result.recipe.image.ref, result.recipe.env) == (IMAGE, {"A": "1"})
    with pytest.raises(ConfigError, match="line 2: names no image to run it in"):
        imported(tmp_path, other + start)


def test_the_options_of_an_engine_that_is_started_in_a_container_are_noted(tmp_path: Path) -> None:
    run = f"docker run -d --ipc host {IMAGE} sleep infinity"
    result = imported(tmp_path, f"{run}\ndocker exec -d -u 1000 -w /w x vllm serve org/m\n")
    assert result.recipe.container.ipc == "host"
    assert [note.partition(": left out")[0] for note in result.notes] == ["line 2: --user 1000", "line 2: --workdir /w"]


def test_what_a_unit_gives_to_the_script_that_it_runs_is_named_as_lost(tmp_path: Path) -> None:
    unit = (
        f"{UNIT}Environment=A=1 B=2\nEnvironmentFile=/etc/x.env\nExecStartPre=/usr/bin/modprobe foo\nExecStart=/x.sh\n"
    )
    for texts in ((unit, LINE), (LINE, unit)):
        result = imported(tmp_path, *texts)
        assert result.missing == []
        assert result.notes == [
            "line 5: EnvironmentFile=/etc/x.env: not read: write its variables under env",
            "line 6: ExecStartPre=/usr/bin/modprobe foo: not run: do it on the node, or in an image",
            "line 7: Environment=A B: left out: write what the engine needs of it under env",
        ]


def test_a_unit_knows_the_home_and_leaves_the_rest_of_systemd_open(tmp_path: Path) -> None:
    line = f"docker run --cidfile=%t/x -v %h/t:/t:ro {IMAGE} --model org/m --served-model-name 5%%"
    result = imported(tmp_path, f"{UNIT}ExecStart=/usr/bin/{line}\n")
    assert result.recipe.container.volumes[0].source == f"{Path.home()}/t"
    assert result.recipe.model.served_name == "5%"
    assert result.notes == ["line 4: --cidfile %t/x: left out: what %t stands for is not known"]
