"""`sparkd init` as a person types it. Only root may: these tests run as root, with an /etc and /var of their own."""

import textwrap

from tests.integration import world

from sparkd.base.lib.errors import ExitCode

COMMON = """
    import json, os, subprocess
    from pathlib import Path

    from sparkd.base.cluster.auth import read_keys
    from sparkd.base.host.files import Files
    from tests.unit.commands import sparkd

    for folder in ("/etc", "/var"):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "own", folder], check=True)
    for folder in ("/etc/sparkd", "/var/lib"):
        os.makedirs(folder)
    CONFIG, KEY = Path("/etc/sparkd/sparkd.toml"), "/etc/sparkd/cluster.key"
    CONFIG.touch()

    def command(*words):
        done = sparkd(*words, config=CONFIG)
        return [done.returncode, done.stdout, done.stderr]
"""


def run(code: str) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each command whose answer the code prints."""
    answers = world.run(textwrap.dedent(COMMON) + textwrap.dedent(code))
    assert isinstance(answers, list)
    return answers


def test_the_command_prints_what_to_do_next_and_no_key() -> None:
    made, rotated, refused = run("""
        answers = []
        for words in (["init", "--new-cluster-key"], ["init", "--new-cluster-key", "--rotate"]):
            answers.append(command(*words))
            assert not [key for key in read_keys(Files(), KEY) if key.hex() in "".join(answers[-1][1:])]
        print(json.dumps([*answers, command("init", "--new-cluster-key")]))
    """)
    for code, output, _ in (made, rotated):
        assert code == ExitCode.GOOD
        assert "wrote /etc/sparkd/cluster.key" in output
    assert refused[0] == ExitCode.USAGE


def test_the_check_of_the_configuration_looks_at_the_key_of_several_nodes() -> None:
    (keyless, _, missing), (written, _, _), (keyed, _, errors) = run("""
        CONFIG.write_text('[cluster]\\nnodes = ["10.254.0.1", "10.254.0.2"]\\n')
        check = ("config", "check")
        print(json.dumps([command(*check), command("init", "--new-cluster-key"), command(*check)]))
    """)
    assert keyless == ExitCode.CONFIG
    assert "no cluster key: /etc/sparkd/cluster.key does not exist" in missing
    assert written == ExitCode.GOOD
    assert keyed == ExitCode.CONFIG
    assert "cluster.key" not in errors
    assert "10.254.0.1" in errors, "this machine has none of the addresses, which stays to be reported"
