"""`sparkd init` on machines made of files: what it proposes and writes, that it repeats nothing, and what stops it."""

import json
import os
import shutil
from collections.abc import Callable, Mapping

import pytest
from msgspec import convert
from tests.machines.areas import docker, model
from tests.tree import Tree
from tests.unit.tools.node_settings import HEAD_OWN, KEY, OWN, PAIR, TOML, files, own_recipe, settings, take_back

from sparkd.base.host import Host, docker_config
from sparkd.base.lib import REINSTALL, recipes_dir
from sparkd.base.lib.errors import BlockedError, ConfigError, ExitCode, UsageError
from sparkd.tools.cli.console import prompt
from sparkd.tools.cli.main import main
from sparkd.tools.setup import join
from sparkd.tools.setup.choice import Choice, Chooser, Wishes
from sparkd.tools.setup.cluster_key import new_files
from sparkd.tools.setup.join import Invitation
from sparkd.tools.setup.node_files import HEADER, NodeFiles
from sparkd.tools.setup.survey import take_survey
from sparkd.tools.setup.wizard import Wizard

NEIGHBOUR = {"interface": "enp1s0f0np0", "link_local": "fe80::2", "addresses": ["10.0.0.2"], "sparkd": True}
PERSONS = "# mine\n[memory]\nheadroom_gib = 4 # as measured\n"

Run = Callable[..., str]


@pytest.fixture
def run(spark: Tree, capsys: pytest.CaptureFixture[str]) -> Run:
    def started(**options: object) -> str:
        Wizard(convert({"yes": True, **options}, Wishes), NodeFiles(Host(spark.root), {}), print, prompt).serve()
        return capsys.readouterr().out

    return started


def enable(spark: Tree, role: str) -> None:
    """As `systemctl enable` does it."""
    unit = f"sparkd-{role}.service"
    spark.link(f"/etc/systemd/system/sparkd.target.wants/{unit}", f"/usr/lib/systemd/system/{unit}")


def test_a_node_alone_gets_the_recipe_that_is_complete_there(spark: Tree, run: Run) -> None:
    own_recipe(spark)
    output = run()
    assert "recipe    mine: Small and its image are here" in output
    assert "needs 2 nodes" in output
    assert settings(spark) == {"engine": {"recipe": "mine"}}
    assert not spark.path(KEY).exists()
    assert output.splitlines()[-1] == "next      sudo systemctl enable --now sparkd-head"


def test_a_no_writes_nothing_and_says_so(spark: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    own_recipe(spark)
    before = files(spark)
    no = lambda question: "n" * question.startswith("write it?")  # noqa: E731
    Wizard(Wishes(), NodeFiles(Host(spark.root), {}), print, no).serve()
    assert capsys.readouterr().out.splitlines()[-1] == "nothing is written; nothing is to be done"
    assert files(spark) == before


def test_what_another_init_has_written_since_the_question_is_not_taken_back(spark: Tree) -> None:
    """A yes after `sparkd init --invite` in another terminal would drop the node that has joined there."""
    recipe = "deepseek-v4-flash-balanced"
    spark.file(OWN, f'{HEADER}\n[engine]\nrecipe = "{recipe}"\n\n[cluster]\nnodes = {json.dumps(PAIR)}\n')
    joined = spark.path(OWN).read_text().replace('"10.0.0.2"', '"10.0.0.2", "10.0.0.3"')

    def join_meanwhile(question: str) -> str:
        if question.startswith("write it?"):
            spark.file(OWN, joined)
        return "y" * ("URL" not in question)

    with pytest.raises(UsageError, match="changed meanwhile"):
        Wizard(Wishes(), NodeFiles(Host(spark.root), {}), print, join_meanwhile).serve()
    assert files(spark)[str(spark.path(OWN))] == joined


def test_the_survey_of_a_node_is_a_dozen_lines(spark: Tree, run: Run) -> None:
    own_recipe(spark)
    shutil.rmtree(spark.root / "srv/models/DeepSeek-V4-Flash")
    spark.folder("/srv/models/Cut")
    spark.file("/srv/models/Cut/model.safetensors", "x" * 9)
    spark.file("/.sparkd/neighbours.json", json.dumps([NEIGHBOUR]))
    spark.docker("/images/json", [{"RepoTags": [docker.IMAGE, "<none>:<none>"]}, {"RepoTags": None}])
    lines = run(plan=True).splitlines()
    assert f"images    {docker.IMAGE}" in lines
    assert lines[:2] == [
        "node      spark1: 121.6 GiB of memory, NVIDIA GB10, driver 580.142",
        "docker    docker 29.2.1; to the GPU by the runtime nvidia, /usr/bin/nvidia-container-runtime-hook",
    ]
    assert lines[2] == "fabric    enp1s0f0np0 (rocep1s0f0, roceP2p1s0f0): 200 Gb/s, MTU 9000, 10.0.0.1"
    assert "answers   on enp1s0f0np0: fe80::2 (10.0.0.2, sparkd runs there)" in lines
    (models,) = (line for line in lines if line.startswith("models"))
    assert "Cut (model.safetensors is " in models
    assert "Small (whole, 0 MiB)" in models
    assert len(lines) < 27


def test_live_restore_is_proposed_by_a_command_that_is_shown_whole(spark: Tree, run: Run) -> None:
    own_recipe(spark)
    spark.docker("/info", {"Runtimes": {"nvidia": {}}, "LiveRestoreEnabled": False, "Swarm": {"LocalNodeState": ""}})
    first, second = run(plan=True).splitlines()[1:3]
    assert first.endswith("; its restart ends the engine: live-restore is off")
    assert second.endswith(f"to have it outlive that, without a restart now: {docker_config.KEEP_CONTAINERS}")


@pytest.mark.parametrize(
    "options", [{"nodes": 2}, {"recipe": "deepseek-v4-flash-balanced"}, {"yes": False}, {"ssh": ["spark2"]}]
)
def test_with_others_the_model_that_is_whole_wins_and_a_plan_writes_nothing(
    spark: Tree, run: Run, options: dict[str, object]
) -> None:
    spark.file("/.sparkd/neighbours.json", json.dumps([NEIGHBOUR]))
    before = files(spark)
    output = run(plan=True, **options)
    assert "deepseek-v4-flash-balanced on 2 nodes: DeepSeek-V4-Flash and its image are here" in output
    assert f"{OWN}: cluster.nodes = ['10.0.0.1']" in output
    assert f"{KEY}: a new key" in output
    assert files(spark) == before


def test_more_nodes_by_ssh_than_are_missing_are_refused_with_the_command_for_all(spark: Tree, run: Run) -> None:
    with pytest.raises(UsageError, match="--ssh names 2 nodes, more than are missing: 1") as caught:
        run(plan=True, nodes=2, ssh=["spark2", "spark3"])
    assert caught.value.hint == "sudo sparkd init --nodes 3 --ssh=spark2 --ssh=spark3"


def test_a_neighbour_alone_makes_no_cluster_without_a_person(spark: Tree, run: Run) -> None:
    own_recipe(spark)
    spark.file("/.sparkd/neighbours.json", json.dumps([NEIGHBOUR]))
    run()
    assert settings(spark) == {"engine": {"recipe": "mine"}}


FOR_TWO = "          two nodes, by enp1s0f0np0: sudo sparkd init --nodes 2"
LOOPBACK_ALONE = "Local:\n     |-- 127.0.0.1\n        /32 host LOCAL\n"


@pytest.mark.parametrize("options", [{"yes": False, "plan": True}, {}])
def test_a_cable_to_a_machine_that_answers_nothing_has_the_command_for_two(
    spark: Tree, run: Run, options: dict[str, object]
) -> None:
    own_recipe(spark)
    spark.file("/proc/net/fib_trie", LOOPBACK_ALONE)
    assert FOR_TWO in run(**options).splitlines()


@pytest.mark.parametrize("options", [{"nodes": 1}, {"recipe": "mine"}])
def test_who_has_chosen_gets_no_command_for_two(spark: Tree, run: Run, options: dict[str, object]) -> None:
    own_recipe(spark)
    spark.file("/proc/net/fib_trie", LOOPBACK_ALONE)
    assert FOR_TWO not in run(**options).splitlines()


def test_without_rdma_there_is_no_command_for_two(spark: Tree, run: Run) -> None:
    own_recipe(spark)
    spark.file("/proc/net/fib_trie", LOOPBACK_ALONE)
    shutil.rmtree(spark.root / "sys/class/infiniband")
    assert FOR_TWO not in run().splitlines()


def test_run_twice_it_changes_nothing(spark: Tree, run: Run) -> None:
    own_recipe(spark)
    run()
    before = files(spark)
    assert "nothing: all of it is there" in run()
    assert files(spark) == before


def test_a_recipe_that_a_person_has_chosen_stays_and_only_they_choose_another(spark: Tree, run: Run) -> None:
    own_recipe(spark)
    own_recipe(spark, "other")
    spark.file(TOML, '[engine]\nrecipe = "other" # for now\n')
    assert "recipe    other: " in run()
    assert not spark.path(OWN).exists()
    before = files(spark)
    with pytest.raises(ConfigError, match=r"/etc/sparkd/sparkd.toml sets engine.recipe too") as caught:
        run(recipe="mine")
    assert caught.value.hint == "take it out there"
    assert files(spark) == before


def test_another_recipe_is_taken_by_name_and_a_value_that_a_person_changed_in_place_stays(
    spark: Tree, run: Run
) -> None:
    for name in ("mine", "other"):
        own_recipe(spark, name)
    run(recipe="other")
    run(recipe="mine")
    assert settings(spark) == {"engine": {"recipe": "mine"}}
    spark.file(OWN, spark.path(OWN).read_text().replace('"mine"', '"other"'))
    assert "nothing: all of it is there" in run()
    run(recipe="mine")
    take_back(spark)
    assert not spark.path(OWN).exists()


@pytest.mark.parametrize("name", ["mine", "tiny-cpu"])
def test_a_recipe_by_its_path_is_configured_by_it(spark: Tree, run: Run, name: str) -> None:
    """Also where a recipe in the folders has its name."""
    own_recipe(spark)
    keys = {"schema": 1, "name": name, "model": {"path": "Other", "repo": "org/Other"}, "image": {"ref": docker.IMAGE}}
    path = str(spark.file(f"/home/me/{name}.yaml", json.dumps(keys)))
    assert f"next      sudo sparkd model pull {path}" in run(recipe=path)
    assert settings(spark) == {"engine": {"recipe": path}}
    spark.file(TOML, f'[engine]\nrecipe = "{path}"\n')
    assert "nothing: all of it is there" in run(recipe=path)


def test_a_file_of_that_name_that_a_person_wrote_is_not_replaced(spark: Tree, run: Run) -> None:
    for name in ("mine", "other"):
        own_recipe(spark, name)
    run(recipe="mine")
    spark.file(OWN, f"{spark.path(OWN).read_text()}models_dir = '/srv/models' # mine\n")
    before = files(spark)
    assert "nothing: all of it is there" in run()
    with pytest.raises(ConfigError, match=r"10-init.toml has keys or comments that") as caught:
        run(recipe="other")
    assert caught.value.hint == f"move keys of your own into {TOML}, remove this file, and run `sparkd init` again"
    assert files(spark) == before
    assert f"left {OWN}: it was changed since" in take_back(spark)


@pytest.mark.parametrize("added", ["# mine\n", "[memory]\nheadroom_gib = 4\n", "recipe = [\n", "#\n"])
def test_a_file_with_more_in_it_than_values_of_init_stays(spark: Tree, run: Run, added: str) -> None:
    own_recipe(spark)
    run()
    spark.file(OWN, f"{spark.path(OWN).read_text()}{added}")
    assert f"left {OWN}: it was changed since" in take_back(spark)


def test_nodes_that_a_person_wrote_are_not_added_to(spark: Tree, run: Run) -> None:
    own_recipe(spark, nodes={"min": 2, "max": 3}, args={"tensor-parallel-size": 3})
    spark.file(TOML, '[cluster]\nnodes = ["10.0.0.1", "10.0.0.2"]\n[engine]\nrecipe = "mine"\n')
    spark.file(KEY, f"{'ab' * 32}\n", mode=0o600)
    before = files(spark)
    with pytest.raises(ConfigError, match=r"sparkd.toml sets cluster.nodes too"):
        run(nodes=3)
    assert files(spark) == before


def test_what_was_written_is_taken_back_exactly(spark: Tree, run: Run) -> None:
    own_recipe(spark)
    spark.file(TOML, PERSONS.replace("[memory]", '[engine]\nmodels_dir = "/data/models"\n[memory]'))
    shutil.copytree(spark.root / "srv/models/Small", spark.root / "data/models/Small")
    before = files(spark)
    assert "50-sparkd.conf" in run()
    assert len(files(spark)) == len(before) + 4, "the manifest, the settings, and two drop-ins"
    take_back(spark)
    assert files(spark) == before


def test_what_is_missing_is_said_with_the_command_that_brings_it(spark: Tree, run: Run) -> None:
    shutil.rmtree(spark.root / "srv/models")
    output = run()
    assert (
        "recipe    nemotron-3-super-nvfp4: /srv/models/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4 is not there" in output
    )
    assert "next      sudo sparkd model pull nemotron-3-super-nvfp4" in output
    assert "next      sudo docker pull vllm/vllm-openai:cu130-nightly" in output
    assert settings(spark) == {"engine": {"recipe": "nemotron-3-super-nvfp4"}}


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        pytest.param({"memory_bytes": 200 << 30}, "needs 202.0 GiB of memory", id="memory"),
        pytest.param({"nodes": {"min": 3, "max": 3}}, "needs 3 node(s)", id="nodes"),
        pytest.param({"args": {"tensor-parallel-size": 2}}, "tensor", id="ranks"),
    ],
)
def test_a_recipe_that_can_not_serve_here_is_refused_and_nothing_written(
    spark: Tree, run: Run, capsys: pytest.CaptureFixture[str], recipe: dict[str, object], why: str
) -> None:
    own_recipe(spark, "mine", **recipe)
    before = files(spark)
    with pytest.raises(BlockedError, match="can't serve here"):
        run(recipe="mine", nodes=1)
    assert why in capsys.readouterr().out
    assert files(spark) == before


def test_a_node_on_which_nothing_fits_gets_to_know_what_to_do(
    spark: Tree, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    (spark.root / "dev/nvidia0").unlink()
    with pytest.raises(BlockedError, match="no recipe fits this node") as caught:
        run()
    assert "sparkd recipe list" in caught.value.hint
    assert "needs a GPU" in capsys.readouterr().out


def test_a_node_without_a_whole_recipe_gets_to_know_what_to_do(spark: Tree, run: Run) -> None:
    """As where the package's recipes are gone: here a broken file of one's own stands before each."""
    for path in recipes_dir().glob("*.yaml"):
        spark.file(f"/etc/sparkd/recipes/{path.name}", "schema: 2\n")
    with pytest.raises(BlockedError, match="no recipe on this node can be read") as caught:
        run(plan=True)
    assert caught.value.hint == f"sparkd recipe check\nwhere none is there: {REINSTALL}"


def test_a_head_without_an_address_gets_the_commands_for_one(
    spark: Tree, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.file("/proc/net/fib_trie", "Local:\n     |-- 127.0.0.1\n        /32 host LOCAL\n")
    with pytest.raises(BlockedError, match="no address on a fabric"):
        run(nodes=2)
    output = capsys.readouterr().out
    assert "sudo netplan apply" in output
    assert "    enp1s0f0np0: {addresses: [10.100.0.1/24], mtu: 9000}\n" in output
    assert "    enP2p1s0f0np0: {addresses: [10.100.1.1/24], mtu: 9000}\n" in output


@pytest.mark.parametrize(("file", "edits"), [(TOML, True), (OWN, False)], ids=["a person's file", "init's file"])
def test_a_worker_is_left_to_its_head(spark: Tree, run: Run, file: str, edits: bool) -> None:
    spark.file(file, '[cluster]\nnodes = ["10.0.0.9", "10.0.0.1"]\n')
    before = files(spark)
    output = run()
    assert "a worker of 10.0.0.9" in output
    edit = f"take cluster.nodes out of {spark.path(file)}; " * edits
    alone = "sudo systemctl disable --now sparkd-worker; sudo sparkd deinit; sudo sparkd init"
    assert f"where it is gone for good: {edit}{alone}\n" in output
    assert output.endswith("next      sudo systemctl enable --now sparkd-worker\n")
    assert files(spark) == before


def test_a_node_whose_own_address_is_gone_is_not_taken_for_a_worker(spark: Tree, run: Run) -> None:
    spark.file(TOML, '[cluster]\nnodes = ["10.0.0.1", "10.0.0.2"]\n')
    spark.file("/proc/net/fib_trie", "Local:\n     |-- 127.0.0.1\n        /32 host LOCAL\n")
    with pytest.raises(ConfigError, match="none of the addresses"):
        run()


def test_a_file_that_comes_after_and_says_another_thing_is_named(spark: Tree, run: Run) -> None:
    own_recipe(spark)
    spark.file("/etc/sparkd/conf.d/theirs.toml", '[engine]\nrecipe = "deepseek-v4-flash-balanced"\n')
    before = files(spark)
    with pytest.raises(ConfigError, match=r"theirs.toml sets engine.recipe too"):
        run(recipe="mine")
    assert files(spark) == before


def test_a_cluster_that_a_person_has_configured_without_a_recipe_gets_what_fits(spark: Tree, run: Run) -> None:
    own_recipe(spark, nodes={"min": 2, "max": 2}, args={"tensor-parallel-size": 2})
    spark.file(TOML, '[cluster]\nnodes = ["10.0.0.1", "10.0.0.2"]\n')
    spark.file(KEY, f"{'ab' * 32}\n", mode=0o600)
    assert "recipe    mine on 2 nodes" in run()
    assert settings(spark) == {"engine": {"recipe": "mine"}}


def test_a_node_leaves_a_cluster_by_a_persons_edit_alone(spark: Tree, run: Run) -> None:
    own_recipe(spark)
    spark.file(TOML, '[cluster]\nnodes = ["10.0.0.1", "10.0.0.2"]\n')
    with pytest.raises(UsageError, match="names 2 nodes"):
        run(recipe="mine", nodes=1)


def test_beside_an_agent_that_runs_the_last_line_says_what_takes_effect_how(spark: Tree, run: Run) -> None:
    own_recipe(spark)
    spark.process(4242, "sparkd", start_time=100, argv=("/usr/bin/sparkd", "run"))
    spark.owner(4242)
    enable(spark, "head")
    assert run().splitlines()[-1] == "next      sudo systemctl restart sparkd-head   # it runs"
    assert run().splitlines()[-1] == "next      sparkd status   # it runs"


def test_an_agent_that_no_boot_would_start_gets_its_unit_enabled(spark: Tree, run: Run) -> None:
    own_recipe(spark)
    spark.process(4242, "sparkd", start_time=100, argv=("/usr/bin/sparkd", "run"))
    spark.owner(4242)
    restart = "next      sudo systemctl restart sparkd-head   # it runs"
    assert run().splitlines()[-2:] == ["next      sudo systemctl enable --now sparkd-head", restart]
    assert run().splitlines()[-1] == "next      sudo systemctl enable --now sparkd-head"


@pytest.mark.parametrize("runs", [False, True])
def test_a_head_that_has_become_a_worker_runs_the_workers_unit_alone(spark: Tree, run: Run, runs: bool) -> None:
    spark.file(TOML, '[cluster]\nnodes = ["10.0.0.9", "10.0.0.1"]\n')
    enable(spark, "head")
    if runs:
        spark.process(4242, "sparkd", start_time=100, argv=("/usr/bin/sparkd", "run"))
        spark.owner(4242)
    assert run().splitlines()[-2:] == [
        "next      sudo systemctl disable --now sparkd-head   # this node is a worker now",
        "next      sudo systemctl enable --now sparkd-worker",
    ]


def test_docker_away_is_no_reason_to_say_that_an_image_is_there(spark: Tree, run: Run) -> None:
    own_recipe(spark)
    (spark.root / "run/docker.pid").unlink()
    output = run(plan=True)
    assert "recipe    mine: docker: away" in output
    assert "next      sudo systemctl start docker" in output


def test_a_node_that_can_not_be_read_is_said(spark: Tree, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    own_recipe(spark)
    shutil.rmtree(spark.root / "srv/models/DeepSeek-V4-Flash")
    spark.file("/srv/models/DeepSeek-V4-Flash", "no folder")
    spark.link("/srv/models/loop", "loop")
    assert "models    Small (whole, 0 MiB)" in run(plan=True)
    (spark.root / "proc/net/fib_trie").unlink()
    with pytest.raises(ConfigError, match=r"this node can't be read: .*fib_trie"):
        run(plan=True)


def test_names_of_others_can_not_forge_lines(spark: Tree, run: Run) -> None:
    spark.folder("/srv/models/x\nrecipe    evil: \x1b[2J")
    own_recipe(spark)
    shutil.copytree(
        spark.root / "srv/models/Small", spark.root / "srv/models/x\nrecipe    evil: \x1b[2J", dirs_exist_ok=True
    )
    output = run(plan=True)
    assert "\x1b" not in output
    assert not any(line.startswith("recipe    evil") for line in output.splitlines())


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["init", "--nodes", "2"], "hint: sudo sparkd init --nodes 2 --yes   # writes at once; --plan only shows"),
        (["init", "--join", "a-secret-code"], "hint: sudo sparkd init --join --yes   #"),
        (["init", "--join=a-secret-code", "--recipe", "x"], "hint: sudo sparkd init --join --recipe x --yes   #"),
        (["init", "--rotate"], "--new-cluster-key --rotate"),
        (["init", "--new-cluster-key", "--plan"], "--plan writes nothing"),
        (["init", "--new-cluster-key", "--rotate", "--plan"], "--plan writes nothing"),
        (["init", "--yes", "--nodes", "9"], "1 to 8"),
    ],
)
def test_what_is_missing_on_the_command_line_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], hint: str
) -> None:
    monkeypatch.setattr("sys.argv", ["sparkd", *words])
    assert main(words) == ExitCode.USAGE
    errors = capsys.readouterr().err
    assert hint in errors or "only root may" in errors


@pytest.mark.skipif(os.geteuid() != 0, reason="is about another user")
@pytest.mark.parametrize("words", [["init", "--nodes", "2"], ["init", "--join"], ["init", "--join", "a-secret-code"]])
def test_another_user_gets_the_same_command_with_sudo(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["sparkd", *words])
    os.seteuid(65534)
    try:
        assert main(words) == ExitCode.USAGE
    finally:
        os.seteuid(0)
    command = " ".join(word for word in words if "secret" not in word)
    assert capsys.readouterr().err.endswith(f"hint: sudo sparkd {command}, or only look: sparkd init --plan\n")


def test_sparks_other_than_this_shape_are_read_too(spark: Tree, run: Run) -> None:
    """Without RDMA devices, models or docker's answer."""
    shutil.rmtree(spark.root / "sys/class/infiniband")
    model.disks(spark, free_gib=1)
    own_recipe(spark)
    assert "(no RDMA)" in run(plan=True)


def test_a_head_that_was_set_up_before_gets_its_key_and_is_not_to_be_restarted(spark: Tree, run: Run) -> None:
    node_files = NodeFiles(Host(spark.root), {})
    node_files.write({("engine", "recipe"): "deepseek-v4-flash-balanced", ("cluster", "nodes"): PAIR}, new_files(KEY))
    spark.path(HEAD_OWN).unlink()
    key = spark.path(KEY).read_text()
    output = run()
    assert f"{HEAD_OWN}: a new key" in output
    assert not any("restart" in line for line in output.splitlines())
    assert spark.path(HEAD_OWN).exists()
    assert spark.path(KEY).read_text() == key


def put_cluster(spark: Tree, count: int, recipe: Mapping[str, object], more: str = "", file: str = OWN) -> None:
    """A cluster of so many nodes, with a recipe for as many ranks as there are nodes."""
    own_recipe(spark, "mine", args={"tensor-parallel-size": "{cluster.size}"}, nodes=recipe)
    nodes = [f"10.0.0.{number}" for number in range(1, count + 1)]
    spark.file(OWN, f'{HEADER}{more}[engine]\nrecipe = "mine"\n')
    spark.file(file, f"{spark.path(file).read_text() if file == OWN else ''}[cluster]\nnodes = {json.dumps(nodes)}\n")
    spark.file(KEY, f"{'ab' * 32}\n", mode=0o600)


def choose(spark: Tree, env: Mapping[str, str], **wishes: object) -> Choice:
    node_files = NodeFiles(Host(spark.root), env)
    settings = node_files.load().settings
    chooser = Chooser(convert(wishes, Wishes), node_files, print)
    return chooser.choose(settings, take_survey(settings, node_files.host), settings.cluster.nodes)


@pytest.mark.parametrize(
    ("file", "more", "env", "reason"),
    [
        (TOML, "", {}, "sparkd.toml sets cluster.nodes too"),
        ("/etc/sparkd/conf.d/20-site.toml", "", {}, "20-site.toml sets cluster.nodes too"),
        (OWN, "", {"SPARKD_CLUSTER__NODES": "10.0.0.1,10.0.0.2"}, "SPARKD_CLUSTER__NODES sets cluster.nodes too"),
        (OWN, "# mine\n", {}, "10-init.toml has keys or comments that `sparkd init` does not write"),
    ],
)
def test_no_new_node_is_let_in_where_the_nodes_can_not_be_written(
    spark: Tree, file: str, more: str, env: dict[str, str], reason: str
) -> None:
    """But one of the cluster may come again."""
    put_cluster(spark, 2, {"min": 2, "max": 4}, more, file)
    choice = choose(spark, env, invite=True)
    assert (choice.missing, choice.most_nodes) == (1, 2)
    assert reason in choice.limit_reason
    with pytest.raises(ConfigError) as caught:
        choose(spark, env, nodes=3)
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("count", "recipe", "wishes", "limit"),
    [
        (2, {"min": 2, "max": 2}, {"invite": True}, (2, "recipe mine is for no more")),
        (2, {"min": 2, "max": 3}, {"invite": True}, (3, "recipe mine is for no more")),
        (3, {"min": 2, "max": 4}, {"ssh": ["known", "new"]}, (4, "recipe mine is for no more")),
        (8, {"min": 2}, {"invite": True}, (8, "")),
    ],
)
def test_as_many_nodes_are_let_in_as_the_recipe_is_for(
    spark: Tree, count: int, recipe: dict[str, object], wishes: dict[str, object], limit: tuple[int, str]
) -> None:
    put_cluster(spark, count, recipe)
    choice = choose(spark, {}, **wishes)
    assert (choice.most_nodes, choice.limit_reason) == limit


def test_another_command_that_has_the_node_is_no_agent(spark: Tree, run: Run) -> None:
    own_recipe(spark)
    spark.process(4242, "sparkd", start_time=100, argv=("/usr/bin/sparkd", "fabric"))
    account = {"pid": 4242, "command": "sparkd fabric test", "invocation": "", "start_time": 100}
    spark.file("/run/sparkd/owner.json", json.dumps(account))
    starts = [line for line in run().splitlines() if "systemctl" in line or "status" in line]
    assert starts == ["next      sudo systemctl enable --now sparkd-head"]


def test_a_head_that_runs_by_no_enabled_unit_is_stopped_where_it_has_become_a_worker(spark: Tree, run: Run) -> None:
    spark.file(TOML, '[cluster]\nnodes = ["10.0.0.9", "10.0.0.1"]\n')
    spark.process(4242, "sparkd", start_time=100, argv=("/usr/bin/sparkd", "run"))
    spark.owner(4242)
    stop = "next      sudo systemctl disable --now sparkd-head   # this node is a worker now"
    assert stop in run().splitlines()


def test_too_many_wrong_codes_have_the_command_for_a_new_one(
    spark: Tree, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its recipe: until a node has joined, the one in the settings is another."""
    arguments = dict[str, object]()

    class Ended(Invitation):
        def __init__(self, *_: object, **options: object) -> None:
            arguments.update(options)
            raise BlockedError("10 wrong codes", str(options["again"]))

    monkeypatch.setattr(join, "Invitation", Ended)
    own_recipe(spark, "pair", nodes={"min": 2, "max": 2}, args={"tensor-parallel-size": 2})
    own_recipe(spark)
    run()
    with pytest.raises(BlockedError, match="10 wrong codes") as caught:
        run(nodes=2, recipe="pair")
    assert caught.value.hint == "for a new code: sudo sparkd init --nodes 2 --recipe pair"
    assert (arguments["most_nodes"], arguments["limit_reason"]) == (2, "recipe pair is for no more")
    assert settings(spark) == {"engine": {"recipe": "mine"}}
