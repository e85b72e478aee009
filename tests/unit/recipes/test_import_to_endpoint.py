"""The commands that an import prints, from the recipe to an endpoint, and what is missing on the way."""

import os
import shlex
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.tree import Tree
from tests.unit.cluster.head_documents import keep_document
from tests.unit.cluster_nodes import addresses, following, machine, settings
from tests.unit.foreign_recipes import OF_SPARKRUN
from tests.unit.published_recipes import SERVES, TEMPLATE, V1, V2, add_mod, imported

from sparkd.base.cluster.membership import resolve_context
from sparkd.base.host import Host
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import ConfigError, HeadAwaitedError
from sparkd.base.recipes.reach import HEAD_FILES
from sparkd.base.state.shared_config import dump, make_shared
from sparkd.tools.cli import main, recipe_import
from sparkd.tools.importers import convert
from sparkd.tools.importers.bundle import Place
from sparkd.tools.models.image_build import read_sources


def test_literal_exports_become_variables_and_others_are_named(root: Path) -> None:
    own = "export NCCL_DEBUG=INFO VLLM_HOST_IP=$(hostname -I | cut -d' ' -f1)"  # sparkd sets the address on each node
    text = f"{V2}command: |\n  {own}\n  export A=1 B='x y'\n  export P=\"/x:$PATH\"\n  C=2 vllm serve o/m\n"
    recipe, result = imported(root, text)
    env = {"A": "1", "B": "x y", "C": "2", "NCCL_DEBUG": "INFO", **OF_SPARKRUN}  # the level is no node's own
    assert recipe.env == env
    assert recipe.image.entrypoint[2] == 'export P=/x:$PATH; exec vllm serve "$@"'
    assert [note.partition("command: ")[2] for note in result.notes] == [
        "VLLM_HOST_IP: left out: sparkd sets what a node's rank needs"
    ]


@pytest.mark.parametrize("head", [V1, V2])
def test_keys_that_neither_tool_knows_are_named(root: Path, head: str) -> None:
    text = f"{head}maintainer: a\npatches: [a.sh]\nvolumes: ['/a:/b']\n{SERVES}"
    _, result = imported(root, text)
    notes = [note.partition(": line ")[2] for note in result.notes]
    assert "5: patches, volumes: left out: no key of eugr's tool or of sparkrun" in notes


def test_hostile_words_stay_words(root: Path) -> None:
    text = f"{V1}build_args: ['; touch /x; $(id)']\n{SERVES}"
    _, conversion = imported(root, text)
    assert conversion.steps[0].endswith("-t vllm-node-own '; touch /x; $(id)')")
    _, conversion = imported(
        root,
        f"{V2}container: nowhere\ncommand: vllm serve /cache/huggingface/hub/models--o--../snapshots/0123456\n",
    )
    assert conversion.steps[0].startswith("sparkd recipe check ")
    assert "no registry has it" in conversion.notes[1]
    _, conversion = imported(root, text.replace("; touch", "\\u001b[2J").replace("'", '"'))
    assert "build_args: left out" in conversion.notes[0]


def test_what_is_written_is_whole_and_its_commands_name_it(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_mod(root / "mods/b", "true\n")
    (root / "recipes/given.yaml").write_text(f"{V1}mods: [b]\ncommand: vllm serve o/m -tp 2\n")
    folder = root.parent / "to here \N{ROCKET}"
    folder.mkdir()
    words = ["recipe", "import", str(root / "recipes/given.yaml"), "--write", str(folder)]
    assert main.main(words) == 0
    steps = printed(capsys)
    if os.geteuid() == 0:
        written = folder / "given.yaml"
        assert steps[1] == shlex.join(["sudo", "sparkd", "image", "build", str(written)])
        (copied,) = read_sources(str(written), Host()).files[0].values()
        assert (copied.content, copied.executable) == (b"true\n", True)
        assert chosen(steps) == "given", "a cluster has its recipe by name"
        place = "/etc/sparkd/recipes/given.yaml"
        assert shlex.join(["sudo", "install", "-D", "-m", "644", str(written), place]) in steps
    assert "sparkd image sync  # --user root, where yours may not use docker there" in steps
    assert main.main(words) == 78
    assert main.main([*words, "--force"]) == 0
    assert main.main([*words[:-1], str(folder / "none")]) == 78
    assert main.main(words[:3]) == 0
    assert "its files, 1: --write FOLDER leaves them" in capsys.readouterr().err


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.partition(". ")[2] for line in capsys.readouterr().out.splitlines()[2:]]


def chosen(steps: Sequence[str]) -> object:
    """The recipe that the printed step names in the settings."""
    return written_settings(steps, "90-recipe.toml")["engine"]["recipe"]


def written_settings(steps: Sequence[str], file: str) -> dict[str, Any]:
    (step,) = [step for step in steps if file in step]
    done = subprocess.run(["bash", "-c", step.partition(" |")[0]], capture_output=True, text=True, check=True)
    return tomllib.loads(done.stdout)


@pytest.fixture
def of_user() -> Iterator[Path]:
    """A folder of another user's, which they reach: pytest's own are closed to them."""
    with TemporaryDirectory(prefix="sparkd-of user-") as name:
        if os.geteuid() == 0:
            os.chown(name, 64000, 64000)
        yield Path(name)


def test_a_folder_that_is_not_roots_is_left_before_the_recipe_is_used(
    root: Path, of_user: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_mod(root / "mods/b", "true\n")
    given, folder = root / "recipes/given.yaml", of_user
    given.write_text(f"{V1}mods: [b]\ncommand: vllm serve o/m -tp 2\n")
    assert main.main(["recipe", "import", str(given), "--write", str(folder)]) == 0
    steps = printed(capsys)
    copy = shlex.split(steps[0])
    assert copy[:7] == ["sudo", "mkdir", "-p", "/etc/sparkd/recipes", "&&", "sudo", "cp"]
    assert {Path(word) for word in copy[8:-1]} == {*folder.iterdir()}, "all that was written, there"
    assert copy[-1] == "/etc/sparkd/recipes/"
    assert chosen(steps) == "given"
    assert not any(str(folder) in step for step in steps[1:])


def test_only_what_is_forced_replaces_or_hides_anything(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = add_mod(root / "mods/b", "true\n") / "run.sh"
    source, folder = root / "recipes/given.yaml", root.parent / "out"
    folder.mkdir()
    source.write_text(f"{V1}mods: [b]\n{SERVES}")
    (folder / "given.yaml").write_text("mine\n")
    words = ["recipe", "import", str(source), "--write", str(folder)]
    assert main.main(words) == 78
    assert [path.name for path in folder.iterdir()] == ["given.yaml"]
    assert "given.yaml: exists already" in capsys.readouterr().err
    assert main.main([*words, "--force"]) == 0
    (first,) = folder.glob("*.mods-*")
    script.write_text("false\n")
    assert main.main([*words, "--force"]) == 0
    assert f"{first}: of an earlier import" in capsys.readouterr().err
    shipped = source.rename(source.with_name("deepseek-v4-flash-balanced.yaml"))
    hides = "deepseek-v4-flash-balanced is a recipe of sparkd, which this one would hide"
    assert main.main([*words[:2], str(shipped), *words[3:]]) == 0
    assert f"{hides} in /etc/sparkd/recipes\n" in capsys.readouterr().err, "that folder is not searched"


def test_a_name_of_sparkds_own_is_refused_where_it_would_hide_that_recipe() -> None:
    hiding = convert.Conversion("deepseek-v4-flash-balanced", "", (), {}, (), ())
    with pytest.raises(ConfigError, match="is a recipe of sparkd, which this one would hide"):
        recipe_import.write(Place(), hiding, force=False)


def test_a_mount_that_a_recipe_cannot_have_is_left_out_with_the_reason(root: Path) -> None:
    _, result = imported(root, f"{V2}executor_config: {{volumes: ['/d:/models/foo']}}\n{SERVES}")
    (note,) = result.notes
    assert note.endswith(
        "volumes: /d:/models/foo: left out: /models/foo in the container is sparkd's own: choose another"
    )


def test_what_the_other_nodes_need_comes_before_the_check(root: Path) -> None:
    add_mod(root / "mods/b", "true\n")
    draft = '{"model": "z/d"}'
    text = f"{V2}mods: [b]\ncommand: |\n  vllm serve o/m -tp 2 --speculative-config '{draft}'\n"
    steps = imported(root, text)[1].steps
    order = [
        "sparkd recipe check", "printf ", "sudo sparkd init --nodes 2", "sudo sparkd init --join",
        "scp /etc/sparkd/recipes/given.yaml OTHER:", "sudo install -D -m 644 ~/given.yaml ",
        "sparkd image sync  #",
        "sudo systemctl enable --now sparkd-worker  # on each",
        "sudo systemctl enable sparkd-head && sudo systemctl restart sparkd-head  # where this node was a worker, ",
    ]  # fmt: skip
    at = [[step.startswith(words) for step in steps].index(True) for words in order]
    assert at == sorted(at)
    assert not any("cluster.nodes" in step for step in steps)
    assert [step.split()[3] for step in steps if step.startswith("sparkd model sync")] == ["m", "d"]
    steps = imported(root, f"{V2}command: vllm serve {root} -tp 2\n")[1].steps
    assert [step.split()[3] for step in steps if step.startswith("sparkd model sync")] == [str(root)]


def test_a_worker_with_the_recipes_file_and_the_printed_settings_runs_what_its_head_sends(
    root: Path, tree: Tree, port: int
) -> None:
    add_mod(root / "mods/a", "touch /opt/a\n")
    add_mod(root / "mods/b", TEMPLATE, chat_jinja="{{ x }}")
    recipe, conversion = imported(
        root, f"{V1}mods: [a, b]\ncommand: vllm serve o/m -tp 2 --chat-template fixed.jinja\n"
    )
    allow = written_settings(conversion.steps, "90-allow.toml")["cluster"]["allow"]
    assert allow == {"privileged": True}
    for name, file in conversion.files.items():
        tree.file(f"/node0/etc/sparkd/recipes/{name}", file.content.decode())
    sent = make_shared(settings(addresses(2), port), recipe, "", "", Files(str(tree.root / "node0")))
    keep_document(tree, dump(sent))
    worker, own = machine(tree, 1), following(addresses(2), port, allow=allow)
    with pytest.raises(HeadAwaitedError, match="no recipe on this node has it"):
        resolve_context(own, None, worker)
    (step,) = (step for step in conversion.steps if step.startswith("sudo install -D -m 644 ~/"))
    tree.file(f"/node1{shlex.split(step, comments=True)[-1]}", conversion.text)
    plan = resolve_context(own, None, worker).plan
    assert [volume.source.rpartition("/")[0] for volume in plan.container.volumes[1:]] == [HEAD_FILES]


def test_what_a_workers_own_settings_must_allow_is_a_step(root: Path) -> None:
    text = f"{V2}executor_config: {{privileged: false, volumes: ['/data:/data', '/x:/x:ro']}}\n"
    steps = imported(root, f"{text}command: vllm serve o/m -tp 2\n")[1].steps
    assert written_settings(steps, "90-allow.toml") == {"cluster": {"allow": {"mounts": ["/data:rw", "/x"]}}}


def test_a_worker_gets_the_devices_limits_and_secrets_that_its_head_wants(root: Path) -> None:
    options = "--device /dev/fuse --device /dev/infiniband --ulimit rtprio=99 -e HF_TOKEN=hf_abcdefghijklmnop"
    recipe, conversion = imported(root, f"docker run {options} vllm/vllm-openai:v1 --model o/m -tp 2 --nnodes 2\n")
    assert written_settings(conversion.steps, "90-allow.toml") == {
        "cluster": {"allow": {"privileged": True, "mounts": ["/dev/fuse:rw"]}},
        "engine": {"secrets": {"HF_TOKEN": recipe.secrets["HF_TOKEN"]}},
    }


def test_a_worker_gets_no_key_of_the_api(root: Path) -> None:
    steps = imported(root, f"{V2}command: vllm serve o/m -tp 2 --api-key s3cret-of-ours\n")[1].steps
    (written,) = (step for step in steps if step.startswith("sudo install -m 600"))
    assert written.endswith("# its value, then Ctrl-D")
    assert not any("90-allow.toml" in step for step in steps)


MISSING = {
    "mods: a: it is not beside the recipe: left out; import again with --mods FOLDER: a copy of the recipe's "
    "repository; for a mod of eugr's: git clone https://github.com/eugr/spark-vllm-docker, and import again with "
    "--mods spark-vllm-docker": f"{V2}mods: [a]\n{SERVES}",
    "mods: @r/a: it is not beside the recipe: left out; import again with --mods FOLDER: a copy of the registry "
    "r,": f"{V2}mods: ['@r/a']\n{SERVES}",
    "mods: @eugr/a: it is not beside the recipe: left out; git clone https://github.com/spark-arena/eugr-recipes, and "
    "import again with --mods eugr-recipes": f"{V2}mods: ['@eugr/a']\n{SERVES}",
    "git clone https://github.com/spark-arena/recipe-registry, and import again with --mods "
    "recipe-registry": f"{V2}mods: ['@experimental/a']\n{SERVES}",
    "pre_exec: x {port}: not run": f"{V2}pre_exec: ['x {{port}}']\n{SERVES}",
    "pre_exec: mkdir /cache/huggingface/x: not run": f"{V2}pre_exec: [y, mkdir /cache/huggingface/x]\n{SERVES}",
    'pre_exec: {"copy": "a", "dest": "/b"}: not run': f"{V2}pre_exec: [y, {{copy: a, dest: /b}}]\n{SERVES}",
    "pre_exec: x &: not run": f"{V2}pre_exec: ['x &']\n{SERVES}",
    "pre_exec: (x & ) && y: not run": f"{V2}pre_exec: ['(x & ) && y']\n{SERVES}",
    "pre_exec: x ~/.cache/y: not run": f"{V2}pre_exec: [x ~/.cache/y]\n{SERVES}",
    "pre_exec: x $A: not run": f"{V2}env: {{A: 1}}\npre_exec: [x $A]\n{SERVES}",
    "pre_exec: x --token ***: not run": f"{V2}pre_exec: [x --token s3cret]\n{SERVES}",
    "pre_exec: y: not run": f"{V2}pre_exec: {['y'] * 17}\n{SERVES}",
    "builder: not run: mine": f"{V2}builder: mine\n{SERVES}",
    "container: mine:1: no registry": f"{V2.replace('r/i:1', 'mine:1')}{SERVES}",
    "container: r/i:1-x86_64: is for x86_64": f"{V2.replace('r/i:1', 'r/i:1-x86_64')}{SERVES}",
    "it needs 16 nodes, and with sparkd at most 8": f"{V2}command: vllm serve o/m -tp 16\n",
    "executor_config.platform: left out: a Spark is arm64": f"{V2}executor_config: {{platform: linux/amd64}}\n{SERVES}",
    "its flags make 1 rank(s)": f"{V2}min_nodes: 2\n{SERVES}",
    "model: no repository": f"{V2}command: vllm serve /data/m\n",
    "args.chat-template: x.jinja: nothing makes": f"{V2}command: vllm serve o/m --chat-template x.jinja\n",
    "--enable-auto-tool-choice needs --tool-call-parser": f"{V2}command: vllm serve o/m --enable-auto-tool-choice\n",
    "command: not run: pip install x": f"{V2}command: |\n  pip install x\n  vllm serve o/m\n",
}


@pytest.mark.parametrize("lack", MISSING)
def test_what_leads_to_no_endpoint_says_so_and_what_is_missing(
    root: Path, lack: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given, folder = root / "recipes/given.yaml", root.parent / "out"
    folder.mkdir()
    given.write_text(MISSING[lack])
    assert main.main(["recipe", "import", str(given), "--write", str(folder)]) == 10
    shown = capsys.readouterr().out
    first, _, missing = shown.partition("This does not lead to an endpoint yet. What is missing first:\n")
    assert first == f"{folder / 'given.yaml'}\n"
    assert lack in missing
    assert missing.endswith(f"\n  less {folder / 'given.yaml'}\n")
    assert "To an endpoint" not in shown + (folder / "given.yaml").read_text()


@pytest.mark.parametrize(
    "more",
    ["", "post_exec: [x]\n", "builder: docker-pull\n", "executor_config: {user: a}\n",
     "executor_config: {platform: linux/arm64}\n",
     "env: {TORCH_EXTENSIONS_DIR: /cache/huggingface/x, MINE_CACHE_DIR: /root/.cache/huggingface/y}\n"],
)  # fmt: skip
def test_what_the_engine_does_without_leaves_the_way_to_an_endpoint(root: Path, more: str) -> None:
    path = root / "recipes/given.yaml"
    path.write_text(f"{V2}{more}command: |\n  set -e\n  echo up\n  vllm serve o/m\n")
    assert main.main(["recipe", "import", str(path)]) == 0


@pytest.mark.parametrize(
    ("runtime", "flags", "executor", "noted"),
    [
        ("vllm-ray", "-tp 2 --distributed-executor-backend ray", "ray", False),
        ("vllm-ray", "", "mp", False),
        ("vllm", "-tp 2 --distributed-executor-backend=ray", "mp", True),
        ("vllm", "-tp 2 --distributed-executor-backend mp", "mp", False),
        ("vllm", "--distributed-executor-backend ray", "mp", False),
    ],
)
def test_ray_joins_the_nodes_where_the_recipe_is_for_it(
    root: Path, runtime: str, flags: str, executor: str, noted: bool
) -> None:
    recipe, result = imported(root, f"{V2}runtime: {runtime}\ncommand: vllm serve o/m {flags}\n")
    assert (recipe.executor, ["executor: ray has Ray" in note for note in result.notes]) == (executor, [True] * noted)
