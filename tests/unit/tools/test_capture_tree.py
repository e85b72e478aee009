"""The tree in a capture: the files that a dry run reads, without secrets, and nothing that leads out of it."""

import os
from pathlib import Path

import pytest

from sparkd.agent.preflight.engine_processes import is_serve
from sparkd.tools.support.capture_tree import hide_values, keep_content
from sparkd.tools.support.recorder import KEPT_SETTINGS, RecordingFiles, read_tree

CONTENT = b"a\0b\0c\0d\0e\0f\0g"


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/etc/sparkd/sparkd.toml", CONTENT),
        ("/etc/sparkd/other.key", b"0" * 64 + b"\n"),
        ("/etc/sparkd/token", b""),
        ("/var/lib/sparkd/setup.json", b""),
        ("/var/lib/sparkd/switch.json", CONTENT),
        ("/run/sparkd/private/rank-plan.json", b""),
        ("/run/sparkd/private/rank.json", CONTENT),
        ("/proc/7/environ", b""),
        ("/proc/7/cmdline", b"a\0***\0***\0***\0***\0***\0"),
    ],
)
def test_what_is_known_to_hold_secrets_is_not_copied(path: str, kept: bytes) -> None:
    assert keep_content(path, CONTENT, "/etc/sparkd/other.key", {"/etc/sparkd/token"}) == kept


def test_of_a_table_of_mounts_the_targets_and_kinds_are_kept() -> None:
    table = (
        b"# guest:hunter22\n//nas/m\t/srv/my\\040models cifs user=bob%hunter22,pass=x 0 0\n\nLABEL=hunter22 / ext4\n"
    )
    assert keep_content("/etc/fstab", table, "", ()) == b"- /srv/my\\040models cifs -\n- / ext4 -\n"


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("bash|-c|export A=1\nexport B=2", "bash|-c|***"),
        ("mysql|-uroot|-phunter22|--password=hunter22|--host|db", "mysql|-u|-p|--password|--host|***"),
        ("x" * 500 + "|a", "x" * 100 + "|***"),
        ("worker: started with hunter22", "worker:"),
        (
            "/usr/bin/python3|-X|utf8|/opt/v/bin/vllm|serve|org/model|--port",
            "/usr/bin/python3|-X|***|/opt/v/bin/vllm|serve|***",
        ),
        (
            "python|-m|vllm.entrypoints.openai.api_server|--api-key|hunter22",
            "python|-m|vllm.entrypoints.openai.api_server|--api-key|***",
        ),
        ("|a", "|***"),
        ("", ""),
    ],
)
def test_of_a_command_the_program_and_its_flags_are_kept(words: str, kept: str) -> None:
    assert "|".join(hide_values(words.split("|"))) == kept


@pytest.mark.parametrize(
    "words", ["vllm serve m --port 1", "python -m vllm serve", "python3 -X a /x/vllm serve", "python x.py"]
)
def test_an_engine_is_known_by_what_is_kept(words: str) -> None:
    assert is_serve(tuple(hide_values(words.split()))) is is_serve(tuple(words.split()))


def read_below(folder: Path, *paths: str) -> dict[str, bytes | None]:
    """What a capture would copy of these files, by their paths below the folder."""
    recording = RecordingFiles()
    for path in paths:
        recording.text(f"{folder}/{path}")
    return {member.path.removeprefix(f"{folder}/"): member.content for member in read_tree(recording, ())}


def test_what_only_root_may_read_is_copied_of_the_settings_alone(tmp_path: Path) -> None:
    """A check reads compose files that units name, and follows links in folders of models, as root."""
    top = tmp_path.resolve()
    for path in ("compose.yml", "model/kube.yaml", "open/open.yaml"):
        (top / path).parent.mkdir(exist_ok=True)
        (top / path).write_text("words")
    for path in ("compose.yml", "model/kube.yaml"):
        (top / path).chmod(0o600)
    (top / "model/config.json").symlink_to("kube.yaml")
    contents = read_below(top, "compose.yml", "model/config.json", "open/open.yaml")
    assert contents["compose.yml"] == b""
    assert contents["model/kube.yaml"] == b""
    assert contents["open/open.yaml"] == b"words"


def test_settings_are_those_of_sparkds_own_folders() -> None:
    assert KEPT_SETTINGS.fullmatch("/etc/sparkd/conf.d/10-more.toml")
    assert not KEPT_SETTINGS.fullmatch("/srv/etc/sparkd/x.toml")


def test_a_tree_has_what_was_looked_at_and_leads_nowhere_else(tmp_path: Path) -> None:
    top = tmp_path.resolve()
    (top / "a").mkdir()
    (top / "a/file").write_text("content")
    (top / "a/other").write_text("not looked at")
    (top / "link").symlink_to(top / "a")
    (top / "out").symlink_to("../../../../../../../../../etc/shadow")
    (top / "pipe").symlink_to("pipe:[12]")
    os.mkfifo(top / "fifo")
    recording = RecordingFiles()
    assert recording.text(f"{top}/link/file") == "content"
    recording.names(f"{top}/link")
    for name in ("out", "pipe"):
        recording.link(f"{top}/{name}")
    recording.exists(f"{top}/fifo")
    members = {member.path.removeprefix(str(top)): member for member in read_tree(recording, ())}
    assert members["/a/file"].content == b"content"
    assert members["/a/other"].content == b"", "its name is there"
    assert members["/link"].target == "a"
    assert members["/fifo"].content == b""
    assert members["/pipe"].target == "pipe:[12]"
    resolved = os.path.normpath(os.path.join(str(top), members["/out"].target))
    assert resolved == "/etc/shadow", "below the tree's root, wherever that is"
    assert "/etc/shadow" not in members, "what a symlink names was not looked at"
