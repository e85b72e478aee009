"""`sparkd init` on a head and on the node that joins it: two network namespaces, each with a machine made of files."""

import json
import textwrap

import pytest
from tests.integration import world
from tests.integration.test_fabric_kernel import COMMON

NODES = """
    from pathlib import Path
    from sparkd.tools.setup.node_files import NodeFiles
    from tests.machines.areas import healthy
    from tests.tree import Tree

    KEY = "etc/sparkd/cluster.key"
    RECIPE = {"schema": 1, "name": "pair", "extends": "deepseek-v4-flash-balanced"}
    WIZARD = '''
    import signal, sys
    from functools import partial
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background job
    from sparkd.tools.cli.console import prompt
    from sparkd.tools.setup.choice import Wishes
    from sparkd.tools.setup.wizard import Wizard
    from sparkd.tools.setup.node_files import NodeFiles
    from sparkd.base.host import Host
    wishes = Wishes(nodes=int(sys.argv[2]), invite="invite" in sys.argv, yes=True, ssh=())
    try:
        wizard = Wizard(wishes, NodeFiles(Host(sys.argv[1]), {}), partial(print, flush=True), prompt)
        wizard.join("") if "join" in sys.argv else wizard.serve()
    except Exception as error:
        print("error:", error)
    '''

    def machine(rank):
        tree = Tree(Path(f"/run/machine{rank}"))
        tree.folder("/proc")
        tree.folder("/dev/shm")
        healthy(tree, rank)
        for name in ("sparkd.toml", "conf.d/fabric.toml"):
            (tree.root / "etc/sparkd" / name).unlink()
        return tree

    def wizard(tree, *words, space=""):
        inside = ["ip", "netns", "exec", space] if space else []
        return subprocess.Popen([*inside, sys.executable, "-c", WIZARD, str(tree.root), "2", *words],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def code_of(process):
        for line in process.stdout:
            if line.startswith("code "):
                return line.split()[1]

    def settings(tree):
        import tomllib
        return tomllib.loads((tree.root / "etc/sparkd/conf.d/10-init.toml").read_text())

    direct()
    head, other = machine(0), machine(1)
"""


PAIR = ["10.0.0.1", "10.0.0.9"]


def run(code: str) -> object:
    return world.run("".join(map(textwrap.dedent, (COMMON, NODES, code))))


def test_a_node_joins_by_the_code_on_stdin_and_both_have_key_and_addresses() -> None:
    printed = run("""
        inviting = wizard(head)
        code = code_of(inviting)
        joining = wizard(other, "join", space="node2")
        output, _ = joining.communicate(code + "\\n", timeout=60)
        rest, _ = inviting.communicate(timeout=60)
        keys = [(tree.root / KEY).read_text() for tree in (head, other)]
        again = wizard(head).communicate(timeout=60)[0]
        from sparkd.base.cluster.head_key import read_public_halves
        from sparkd.base.host.files import Files
        halves = read_public_halves(Files(str(head.root)))
        fits = halves[0].hex() == (other.root / "etc/sparkd/head.pub").read_text().split()[-1]
        print(json.dumps([settings(head), settings(other), keys[0] == keys[1], keys[0].split()[-1] in output + rest,
                          oct((other.root / KEY).stat().st_mode)[-3:], output.splitlines(), rest.splitlines(), again,
                          fits]))
    """)
    assert isinstance(printed, list)
    head, other, same, shown, mode, lines, rest, again, fits = printed
    assert fits, "the node has the public half of its head's key"
    nodes = ["10.0.0.1", "10.0.0.2"]
    assert head == {"cluster": {"nodes": nodes}, "engine": {"recipe": "deepseek-v4-flash-balanced"}}
    assert other == {"cluster": {"nodes": nodes, "follow_head": True}}
    assert (same, shown, mode) == (True, False, "600")
    assert any("10.0.0.1, as 10.0.0.2" in line for line in lines), lines
    assert any(line.endswith("the others run when the head's configuration has come") for line in lines), lines
    assert not any("block configuration" in line for line in lines), lines
    assert lines[-1].endswith("sudo systemctl enable --now sparkd-worker")
    assert any(line.startswith("joined") and "(10.0.0.2)" in line for line in rest), rest
    assert rest[-1].endswith("sudo systemctl enable --now sparkd-head")
    assert "nothing: all of it is there" in again


def test_ctrl_c_while_it_waits_says_who_has_joined_and_how_to_continue() -> None:
    rest = run("""
        import signal
        inviting = wizard(head)
        code_of(inviting)
        inviting.send_signal(signal.SIGINT)
        print(json.dumps(inviting.communicate(timeout=60)[1].splitlines()))
    """)
    assert isinstance(rest, list)
    assert "interrupted; nodes that have joined and stay: none" in rest
    assert "sudo sparkd init --nodes 2   # makes a new code" in rest


def test_a_head_that_serves_alone_keeps_its_settings_where_no_node_joins() -> None:
    printed = run("""
        import signal
        alone = '[engine]\\nrecipe = "alone"\\n'
        own_file = head.file("/etc/sparkd/conf.d/10-init.toml", alone)
        by_recipe = WIZARD.replace("ssh=()", "recipe='deepseek-v4-flash-balanced'")
        inviting = subprocess.Popen([sys.executable, "-c", by_recipe, str(head.root), "2"],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        code_of(inviting)
        inviting.send_signal(signal.SIGINT)
        lines = inviting.communicate(timeout=60)[1].splitlines()
        print(json.dumps([own_file.read_text() == alone, lines]))
    """)
    assert isinstance(printed, list)
    is_kept, lines = printed
    assert is_kept, "after a power cut it would not start: its recipe needs two nodes"
    assert "sudo sparkd init --nodes 2 --recipe deepseek-v4-flash-balanced   # makes a new code" in lines


def test_a_head_that_runs_is_to_be_restarted_once_a_node_has_joined() -> None:
    lines = run("""
        text = '[engine]\\nrecipe = "deepseek-v4-flash-balanced"\\n[cluster]\\nnodes = ["10.0.0.1"]\\n'
        head.file("/etc/sparkd/conf.d/10-init.toml", text)
        head.link("/etc/systemd/system/sparkd.target.wants/sparkd-head.service", "/usr/lib/none")
        head.process(4242, "sparkd", start_time=100, argv=("/usr/bin/sparkd", "run"))
        head.owner(4242)
        inviting = wizard(head)
        wizard(other, "join", space="node2").communicate(code_of(inviting) + "\\n", timeout=60)
        print(json.dumps(inviting.communicate(timeout=60)[0].splitlines()))
    """)
    assert isinstance(lines, list)
    assert lines[-1] == "next      sudo systemctl restart sparkd-head   # it runs"


def test_a_wrong_code_changes_nothing_there_and_the_right_one_is_still_good() -> None:
    printed = run("""
        inviting = wizard(head)
        code = code_of(inviting)
        wrong = code[:-1] + ("1" if code[-1] == "0" else "0")
        before = sorted(str(path) for path in other.root.rglob("etc/**/*"))
        refused = wizard(other, "join", space="node2").communicate(wrong + "\\n", timeout=60)[0]
        untouched = before == sorted(str(path) for path in other.root.rglob("etc/**/*"))
        wizard(other, "join", space="node2").communicate(code + "\\n", timeout=60)
        inviting.communicate(timeout=60)
        print(json.dumps([refused.splitlines()[-1], untouched, settings(head)["cluster"]["nodes"]]))
    """)
    assert isinstance(printed, list)
    refused, untouched, nodes = printed
    assert refused.startswith("join code: error:"), refused
    assert untouched
    assert nodes == ["10.0.0.1", "10.0.0.2"]


def test_a_node_that_was_installed_again_is_invited_again() -> None:
    printed = run("""
        inviting = wizard(head)
        wizard(other, "join", space="node2").communicate(code_of(inviting) + "\\n", timeout=60)
        inviting.communicate(timeout=60)
        for name in (KEY, "etc/sparkd/conf.d/10-init.toml", "var/lib/sparkd/setup.json"):
            (other.root / name).unlink()
        again = wizard(head, "invite")
        output = wizard(other, "join", space="node2").communicate(code_of(again) + "\\n", timeout=60)[0]
        again.communicate(timeout=60)
        keys = [(tree.root / KEY).read_text() for tree in (head, other)]
        print(json.dumps([settings(head)["cluster"]["nodes"], keys[0] == keys[1], output]))
    """)
    assert isinstance(printed, list)
    nodes, same, output = printed
    assert (nodes, same) == (["10.0.0.1", "10.0.0.2"], True), output


@pytest.mark.parametrize(
    ("most", "file", "outcome"),
    [(2, "conf.d/10-init", "refused"), (3, "sparkd", "refused"), (3, "conf.d/10-init", "joined")],
)
def test_a_node_more_than_recipe_or_a_persons_file_allow_is_refused_before_it_has_the_key(
    most: int, file: str, outcome: str
) -> None:
    printed = run(f"""
        recipe = {{"nodes": {{"min": 2, "max": {most}}}, "args": {{"tensor-parallel-size": "{{cluster.size}}"}}}}
        head.file("/etc/sparkd/recipes/pair.yaml", json.dumps(RECIPE | recipe))
        head.file("/etc/sparkd/{file}.toml", 'engine.recipe = "pair"\\ncluster.nodes = {json.dumps(PAIR)}\\n')
        inviting = subprocess.Popen([sys.executable, "-c", WIZARD.replace("int(sys.argv[2])", "None"), str(head.root),
                                     "invite", "invite"], stdout=subprocess.PIPE, text=True)
        wizard(other, "join", space="node2").communicate(code_of(inviting) + "\\n", timeout=60)
        line = next(line for line in inviting.stdout if line.startswith(("joined", "refused", "error")))
        inviting.kill()
        nodes = NodeFiles(Host(head.root), {{}}).load().settings.cluster.nodes
        print(json.dumps([nodes, (other.root / KEY).exists(), line]))
    """)
    nodes = PAIR if outcome == "refused" else [*PAIR, "10.0.0.2"]
    assert isinstance(printed, list)
    assert printed[:2] == [nodes, outcome == "joined"], printed
    assert printed[2].startswith(outcome), printed
    assert ("10.0.0.2: the cluster has 2 nodes already" in printed[2]) is (outcome == "refused")


@pytest.mark.parametrize("hosts", [["other", "lost"], ["lost", "other"]])
def test_a_node_that_joined_by_ssh_is_written_down_where_another_one_fails_and_the_way_on_is_said(
    hosts: list[str],
) -> None:
    printed = run(
        f"\nhosts = {hosts}\n"
        + textwrap.dedent("""
        import os
        ssh = Path("/run/bin/ssh")
        ssh.parent.mkdir()
        ssh.write_text(f'''#!/bin/sh
        case "$*" in *lost*) echo "root@lost: Permission denied (publickey)." >&2; exit 255;; esac
        exec ip netns exec node2 {sys.executable} -c "$WIZARD" {other.root} 4 join
        ''')
        ssh.chmod(0o755)
        os.environ |= {"PATH": f"{ssh.parent}:{os.environ['PATH']}", "WIZARD": WIZARD}
        by_ssh = WIZARD.replace("ssh=()", f"ssh={hosts}, recipe='four'")
        four = {"schema": 1, "name": "four", "model": {"path": "DeepSeek-V4-Flash"}, "image": {"ref": "i:1"},
                "args": {"tensor-parallel-size": 4}, "nodes": {"min": 4, "max": 4}}
        head.file("/etc/sparkd/recipes/four.yaml", json.dumps(four))
        done = subprocess.run([sys.executable, "-c", by_ssh, str(head.root), "4"], capture_output=True, text=True)
        nodes = settings(head)["cluster"]["nodes"] if (head.root / "etc/sparkd/conf.d/10-init.toml").exists() else []
        print(json.dumps([nodes, done.stdout.splitlines(), done.stderr]))
    """)
    )
    assert isinstance(printed, list)
    nodes, lines, _ = printed
    assert nodes == ["10.0.0.1", "10.0.0.2"], "\n".join(lines)
    assert any(line.startswith("joined") for line in lines), printed
    assert "there     other: sudo systemctl enable --now sparkd-worker" in lines
    assert lines[-1].startswith("error: lost: "), printed
    (refused,) = [line for line in lines if line.startswith("failed") and "lost: " in line]
    assert refused.endswith("sudo ssh-copy-id lost; or there by hand: sudo sparkd init --join)"), "init has no --user"
