"""Settings: what the layers say is merged and checked, and every fault is named with its place."""

import time
from pathlib import Path

import pytest
from tests.unit.settings_files import faults, write

from sparkd.base.config import Engine, Settings, load_settings, load_with_origins
from sparkd.base.lib.errors import ConfigError


def test_later_layers_win_key_by_key(tmp_path: Path) -> None:
    write(tmp_path, '[engine]\nrecipe = "a"\nimage = "one:1"\nmodels_dir = "/m"\n')
    write(tmp_path, '[engine]\nrecipe = "b"\nimage = "two:2"\n', "conf.d/20-b.toml")
    write(tmp_path, '[engine]\nrecipe = "c"\n', "conf.d/10-a.toml")
    write(tmp_path, '[engine]\nrecipe = "d"\n', "conf.d/30-off.toml.disabled")
    loaded = load_with_origins({"SPARKD_ENGINE__IMAGE": "three:3", "PATH": "/bin"}, tmp_path)
    assert loaded.settings.engine == Engine(recipe="b", image="three:3", models_dir="/m")
    assert loaded.origins == {
        "engine.recipe": str(tmp_path / "etc/sparkd/conf.d/20-b.toml"),
        "engine.image": "SPARKD_ENGINE__IMAGE",
        "engine.models_dir": str(tmp_path / "etc/sparkd/sparkd.toml"),
    }
    assert [file.name for file in loaded.files] == ["sparkd.toml", "10-a.toml", "20-b.toml"]


def test_what_init_wrote_comes_first_and_is_named_as_the_origin(tmp_path: Path) -> None:
    write(tmp_path, '[engine]\nrecipe = "init"\nimage = "init:1"\nmodels_dir = "/init"\n', "conf.d/10-init.toml")
    write(tmp_path, '[engine]\nrecipe = "person"\nimage = "person:1"\n')
    write(tmp_path, '[engine]\nimage = "early:1"\n', "conf.d/05-a.toml")
    loaded = load_with_origins({}, tmp_path)
    assert loaded.settings.engine == Engine(recipe="person", image="early:1", models_dir="/init")
    assert loaded.origins["engine.models_dir"] == str(tmp_path / "etc/sparkd/conf.d/10-init.toml")
    assert [file.name for file in loaded.files] == ["10-init.toml", "sparkd.toml", "05-a.toml"]


def test_what_an_editor_keeps_beside_a_file_is_no_setting(tmp_path: Path) -> None:
    write(tmp_path, '[engine]\nrecipe = "mine"\n', "conf.d/20-a.toml")
    write(tmp_path, "unfinished", "conf.d/.20-a.toml")
    (tmp_path / "etc/sparkd/conf.d/.#20-a.toml").symlink_to("me@spark.812:1764370000")  # Emacs' lock
    assert load_settings({}, tmp_path).engine.recipe == "mine"


def test_no_link_of_a_tree_of_files_leads_out_of_it(tmp_path: Path) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    write(outside, '[engine]\nimage = "outside:1"\n')
    write(outside, '[engine]\nimage = "outside:2"\n', "conf.d/20-a.toml")
    own = write(tree, "")
    own.unlink()
    own.symlink_to(outside / "etc/sparkd/sparkd.toml")
    (own.parent / "conf.d").symlink_to(outside / "etc/sparkd/conf.d")
    assert faults(tree) == [f"{own}: is a link to a file that does not exist"]
    write(tree, '[engine]\nimage = "inside:1"\n', "real.toml")
    own.unlink()
    own.symlink_to("/etc/sparkd/real.toml")  # as the tree's machine reads it
    assert load_settings({}, tree).engine.image == "inside:1"


def test_tables_merge_entry_by_entry_and_flags_in_either_writing(tmp_path: Path) -> None:
    write(tmp_path, '[engine.args]\nmax_model_len = 1\nseed = 2\n[engine.env]\nA = "1"\n')
    write(tmp_path, '[engine.args]\nmax-model-len = 3\n[engine.env]\nB = "2"\n', "conf.d/1.toml")
    env = {"SPARKD_ENGINE__ENV__A": "x", "SPARKD_ENGINE__ARGS__DTYPE": "auto", "SPARKD_ENGINE__ARGS__SEED": "7"}
    loaded = load_with_origins(env, tmp_path)
    assert dict(loaded.settings.engine.args) == {"max-model-len": 3, "seed": 7, "dtype": "auto"}
    assert dict(loaded.settings.engine.env) == {"A": "x", "B": "2"}
    assert loaded.origins["engine.args.max-model-len"].endswith("1.toml")
    assert loaded.origins["engine.env.A"] == "SPARKD_ENGINE__ENV__A"


def test_a_flags_json_value_is_replaced_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path, "[engine.args]\ncompilation-config = { mode = 3, pass = { a = 1 } }\n")
    write(tmp_path, "[engine.args]\ncompilation-config = { pass = { b = 2 } }\n", "conf.d/1.toml")
    assert load_settings({}, tmp_path).engine.args == {"compilation-config": {"pass": {"b": 2}}}
    env = {"SPARKD_ENGINE__ARGS": '{"compilation_config": {"level": 1}}'}
    assert load_settings(env, tmp_path).engine.args == {"compilation-config": {"level": 1}}


def test_without_a_file_everything_has_its_default_and_only_load_reads_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Settings()
    assert load_settings({}, tmp_path) == before
    assert before.supervise.stall_seconds == 360
    assert before.engine.recipe == ""
    for name in ("SPARKD_ENGINE__RECIPE", "SPARKD_engine__recipe", "engine__recipe", "ENGINE__RECIPE"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("ENGINE", '{"recipe": "x"}')
    assert Settings() == before
    with pytest.raises(ValueError, match="frozen"):
        before.memory.floor_mib = 3  # type: ignore[misc]  # the point of the test


@pytest.mark.parametrize(
    ("raw", "nodes"),
    [
        ("10.0.0.1, 10.0.0.2", ("10.0.0.1", "10.0.0.2")),
        ('["10.0.0.1"]', ("10.0.0.1",)),
        ("", ()),
        ("fe80::1%eth0", ("fe80::1%eth0",)),
    ],
)
def test_a_list_in_a_variable_is_by_commas_or_json(tmp_path: Path, raw: str, nodes: tuple[str, ...]) -> None:
    assert load_settings({"SPARKD_CLUSTER__NODES": raw}, tmp_path).cluster.nodes == nodes


def test_a_named_file_must_exist_the_default_need_not(tmp_path: Path) -> None:
    missing = tmp_path / "elsewhere.toml"
    assert faults(tmp_path, {"SPARKD_CONFIG": str(missing)}) == [f"{missing}: does not exist"]
    missing.write_text("[memory]\nfloor_mib = 1\n")
    assert load_settings({"SPARKD_CONFIG": str(missing)}, tmp_path).memory.floor_mib == 1


@pytest.mark.parametrize(
    ("text", "needles"),
    [
        ("[engine]\nrecipe =\n", ["line 2", "no TOML"]),
        ('[engine]\nrecipe = "a"\nrecipe = "b"\n', ["no TOML"]),
        ('[engine]\nrecipee = "a"\n', ["engine.recipee", "did you mean engine.recipe?"]),
        ('[cluster]\nrecipe = "a"\n', ["cluster.recipe", "did you mean engine.recipe?"]),
        ('recipe = "a"\n', ["did you mean engine.recipe?"]),
        ("[engin]\n", ["engin:", "did you mean engine?"]),
        ("cluster = 3\n", ["cluster = 3", "[cluster]"]),
        ("[[cluster]]\n", ["cluster", "[cluster]"]),
        ("[cluster]\nmaster_port = 0\n", ["cluster.master_port = 0", "greater than or equal to 1"]),
        ("[cluster]\nmaster_port = 65536\n", ["less than or equal to 65535"]),
        ('[cluster]\nmaster_port = "29501"\n', ['= "29501"', "valid integer"]),
        (f"[cluster]\nmaster_port = 0x{'f' * 5000}\n", ["cluster.master_port = (too long"]),
        (f"[engine.args]\nx = 0x{'f' * 5000}\n", ["--x", "more digits than"]),
        ("[cluster]\nmaster_port = true\n", ["= true", "valid integer"]),
        (
            "[cluster]\nreport_port = 29501\n",
            ["cluster.report_port = 29501: cluster.master_port already has this port"],
        ),
        (
            "[cluster]\nmaster_port = 29510\n",
            ["cluster.report_port = 29510: cluster.master_port already has this port"],
        ),
        ("[observe]\nlisten = '127.0.0.1:29510'\n", ["observe.listen", "cluster.report_port already has this port"]),
        (
            "[memory]\nsettle_seconds = 121\n",
            ["memory.settle_seconds = 121: must be at most preflight.wait_seconds, 120"],
        ),
        (
            "[preflight]\nwait_seconds = 59\n",
            ["memory.settle_seconds = 60: must be at most preflight.wait_seconds, 59"],
        ),
        ('[cluster]\nnodes = ["spark1"]\n', ['["spark1"]', "IP address"]),
        ('[cluster]\nnodes = ["0.0.0.0"]\n', ["the address of one node"]),
        ('[cluster]\nnodes = ["::ffff:0.0.0.0"]\n', ["the address of one node"]),
        ('[cluster]\nnodes = ["fe80::1", "fe80::2"]\n', ['"fe80::1"', "link-local", "netplan"]),
        ('[cluster]\nnodes = ["10.0.0.1", "10.0.0.1"]\n', ["10.0.0.1 twice"]),
        ('[cluster]\nnodes = ["10.0.0.1", "127.0.0.1"]\n', ["127.0.0.1 reaches no other node"]),
        ('[cluster]\nnodes = "10.0.0.1"\n', ["cluster.nodes", "must be a list in brackets"]),
        (f"[cluster]\nnodes = {[f'10.0.0.{n}' for n in range(1, 10)]}\n", ["names 9 nodes: 1 to 8"]),
        ("[cluster]\nallow_image_difference = 1\n", ["valid boolean"]),
        ('[engine]\nmodels_dir = "models"\n', ['"models"', "absolute path"]),
        ('[engine]\nmodels_dir = "/srv/../etc"\n', ["no .."]),
        ('[engine]\nscript = "~/run.sh"\n', ["absolute path"]),
        ('[engine]\nimage = "a b"\n', ['"a b"', "name:tag"]),
        ('[engine]\nrecipe = "../x"\n', ["the name of a recipe"]),
        ("[engine]\nstop_grace_seconds = 0\n", ["engine.stop_grace_seconds = 0"]),
        ("[engine]\nargs = 3\n", ["engine.args = 3", "table"]),
        ("[engine.args]\nnnodes = 2\n", ["--nnodes belongs to sparkd", "cluster.nodes"]),
        ("[engine.args]\nmax_model_len = 1\nmax-model-len = 1\n", ["--max-model-len is given twice"]),
        ("[engine.args]\nsince = 2026-01-01\n", ["--since", "date", "quotes"]),
        ("[engine.args]\nx = inf\n", ["--x", "no number that JSON knows"]),
        ('[engine.secrets]\nHF_TOKEN = "token"\n', ["HF_TOKEN", "absolute path"]),
        ('[fabric]\ninterface = "a b"\n', ["network interface"]),
        ('[preflight]\nallow_fixes = ["reboot"]\n', ["preflight.allow_fixes", "'end-process'"]),
        ('[preflight]\nskip = ["Page Cache"]\n', ["id of a check"]),
        ("[memory]\nheadroom_gib = nan\n", ["memory.headroom_gib"]),
        ('[observe]\nlisten = "localhost:1"\n', ["observe.listen", "127.0.0.1:29511"]),
        ('[observe]\nlisten = "::1:29511"\n', ["[::1]:29511"]),
        ('[observe]\nlisten = "127.0.0.1:99999"\n', ["observe.listen"]),
        ('[observe]\nlisten = "0.0.0.0:29511"\n', ["observe.listen", "beyond this machine", "observe.token_file"]),
        ('[observe]\nlisten = "[fe80::1]:9"\ntoken_file = ""\n', ["observe.listen", "observe.token_file"]),
        ('[observe]\ntoken_file = "token"\n', ["observe.token_file", "absolute path"]),
    ],
)
def test_each_fault_names_file_key_value_and_need(tmp_path: Path, text: str, needles: list[str]) -> None:
    path = write(tmp_path, text)
    (line,) = faults(tmp_path)
    for needle in (str(path), *needles):
        assert needle in line


@pytest.mark.parametrize(
    ("name", "raw", "needles"),
    [
        ("SPARKD_ENGINE__RECIPEE", "a", ["did you mean SPARKD_ENGINE__RECIPE?"]),
        ("SPARKD_ENGINE_RECIPE", "a", ["did you mean SPARKD_ENGINE__RECIPE?"]),
        ("SPARKD_engine__recipe", "a", ["did you mean SPARKD_ENGINE__RECIPE?"]),
        ("SPARKD_CONFG", "a", ["did you mean SPARKD_CONFIG?"]),
        ("SPARKD_", "a", ["no such setting"]),
        ("SPARKD_CLUSTER__NODES__X", "a", ["no such setting"]),
        ("SPARKD_CLUSTER__MASTER_PORT", "many", ['cluster.master_port = "many"', "valid integer"]),
        ("SPARKD_CLUSTER__MASTER_PORT", "1_000", ['cluster.master_port = "1_000"', "valid integer"]),
        ("SPARKD_MEMORY__LOAD_GUARD", "yes", ['memory.load_guard = "yes"', "valid boolean"]),
        ("SPARKD_CLUSTER__MASTER_PORT", "[" * 5000, ["cluster.master_port", "..."]),
        ("SPARKD_ENGINE__ENV", "A=b", ['engine.env = "A=b"', "table"]),
        ("SPARKD_ENGINE__ENV__HF_TOKEN", "hf_123", ["HF_TOKEN looks like a secret"]),
        ("SPARKD_ENGINE__ARGS__X", '"\\ud800"', ["not valid Unicode"]),
        ("SPARKD_ENGINE__MODELS_DIR", "/m\udcff", ["not valid Unicode"]),
    ],
)
def test_each_fault_of_a_variable_names_it(tmp_path: Path, name: str, raw: str, needles: list[str]) -> None:
    (line,) = faults(tmp_path, {name: raw})
    for needle in (name, *needles):
        assert needle in line
    assert "hf_123" not in line


def test_all_faults_of_all_layers_are_said_at_once(tmp_path: Path) -> None:
    write(tmp_path, "[cluster]\nmaster_port = 0\nnode = []\n")
    write(tmp_path, "broken", "conf.d/1.toml")
    lines = faults(tmp_path, {"SPARKD_FABRIC__MTU": "9", "SPARKD_NO": ""})
    assert len(lines) == 5


def test_a_list_of_thousands_of_wrong_values_is_refused_within_a_second(tmp_path: Path) -> None:
    began = time.process_time()
    with pytest.raises(ConfigError, match=r"cluster\.nodes"):
        load_settings({"SPARKD_CLUSTER__NODES": ",".join(["10."] * 10_000)}, tmp_path)
    assert time.process_time() - began < 2


def test_confd_beside_a_named_file_is_read_only_where_nobody_else_may_write(tmp_path: Path) -> None:
    tmp_path /= "of mine"
    path = write(tmp_path, "")
    folder = write(tmp_path, '[engine]\nimage = "theirs:1"\n', "conf.d/1.toml").parent
    named = {"SPARKD_CONFIG": str(path)}
    folder.chmod(0o755)
    assert load_settings(named).engine.image == "theirs:1"
    for mode in (0o775, 0o757):
        folder.chmod(mode)
        with pytest.raises(ConfigError, match="others may write in it") as refused:
            load_settings(named, tmp_path)
        assert f"sudo chmod go-w '{folder}'" in refused.value.hint
        assert load_settings({}, tmp_path).engine.image == "theirs:1"


def test_what_is_no_text_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "")
    path.write_bytes(b"[engine]\n# \xff\n")
    assert faults(tmp_path) == [f"{path}: line 2: is no UTF-8 text"]
    path.unlink()
    path.symlink_to(tmp_path / "missing")
    assert faults(tmp_path) == [f"{path}: is a link to a file that does not exist"]
    path.unlink()
    path.mkdir()
    assert faults(tmp_path) == [f"{path}: is no regular file"]
    assert faults(tmp_path, {"SPARKD_CONFIG": "/dev/zero"}) == ["/dev/zero: is no regular file"]
    folder = write(tmp_path, "", "conf.d")
    assert faults(tmp_path) == [f"{folder}: cannot be read: Not a directory"]


def test_preflight_may_wait_for_just_as_long_as_memory_settles() -> None:
    settled = Settings.model_validate({"memory": {"settle_seconds": 90}, "preflight": {"wait_seconds": 90}})
    assert settled.memory.settle_seconds == settled.preflight.wait_seconds


@pytest.mark.parametrize(
    ("raw", "address"), [("127.0.0.2:29511", ("127.0.0.2", 29511)), ("[::1]:9", ("::1", 9)), ("", None)]
)
def test_the_observers_address_is_split(tmp_path: Path, raw: str, address: tuple[str, int] | None) -> None:
    assert load_settings({"SPARKD_OBSERVE__LISTEN": raw}, tmp_path).observe.address == address


def test_monitors_reach_a_node_from_elsewhere_only_by_a_token(tmp_path: Path) -> None:
    settings = {"SPARKD_OBSERVE__LISTEN": "0.0.0.0:29511", "SPARKD_OBSERVE__TOKEN_FILE": "/etc/sparkd/observe.token"}
    assert load_settings(settings, tmp_path).observe.address == ("0.0.0.0", 29511)
