"""What a person sees who does not know the commands yet."""

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from tests.unit.commands import needs_no_agent, sparkd

from sparkd import __version__
from sparkd.tools.cli.main import COMMANDS, GROUPS
from sparkd.tools.cli.parser import name_or_path


def test_each_command_is_in_one_group_of_the_help_within_80_columns() -> None:
    grouped = [name for names in GROUPS.values() for name in names.split()]
    assert sorted(grouped) == sorted(name for name, _, _ in COMMANDS)
    shown = sparkd("--help")
    lines = shown.stdout.splitlines()
    assert shown.returncode == 0
    assert [line for line in lines if len(line) > 80] == []
    assert [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "] == grouped


@pytest.mark.parametrize(
    ("words", "same"), [("help", "--help"), ("-h", "--help"), ("help recipe list", "recipe list -h")]
)
def test_help_is_a_word_too(words: str, same: str) -> None:
    assert sparkd(*words.split()) == sparkd(*same.split())


@pytest.mark.parametrize(
    ("word", "meant"),
    [("mine", "mine"), ("mine.yaml", "{}/mine.yaml"), ("../mine", "{}/../mine"), ("/etc/x", "/etc/x"), ("", "")],
)
def test_a_recipe_is_named_or_its_file_is_found_from_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, word: str, meant: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert name_or_path(word) == meant.format(tmp_path).replace(f"{tmp_path.name}/../", "")


def test_version_is_a_word_too() -> None:
    assert sparkd("version").stdout == sparkd("--version").stdout == f"sparkd {__version__}\n"


@pytest.mark.parametrize("word", ["start", "stop", "restart"])
def test_what_systemd_does_is_answered_with_its_lines(word: str) -> None:
    done = sparkd(word)
    assert done.returncode == 2
    assert "did you mean" not in done.stderr
    assert done.stderr.splitlines()[1:] == [
        f"hint: sudo systemctl {word} sparkd-head",
        f"hint: on every other node: sudo systemctl {word} sparkd-worker",
    ]


def test_without_a_command_it_is_status() -> None:
    assert sparkd() == sparkd("status")


@pytest.mark.parametrize(
    ("words", "reason", "help_of"),
    [
        ("preflight --dryrun", "preflight: there is no option --dryrun; did you mean --dry-run?", "preflight"),
        ("history --since=2d", "history: there is no option --since", "history"),
        ("recipe import x --nam=y", "recipe import: there is no option --nam", "recipe import"),
        ("status spark1 spark2", "status: too many words: spark1 spark2", "status"),
        ("recipe", "recipe: the following arguments are required: ACTION", "recipe"),
        ("bench --runs x", "--runs: needed are numbers from 1 to 100, such as 1,2,4", "bench"),
        ("recipe import", "name a file, or --container NAME", "recipe import"),
        ("--frob status", "there is no option --frob", ""),
    ],
)
def test_a_word_that_a_command_does_not_know_leads_to_its_help(words: str, reason: str, help_of: str) -> None:
    done = sparkd(*words.split(" "))
    first, *hints = done.stderr.splitlines()
    assert done.returncode == 2
    assert done.stdout == ""
    assert hints == [f"hint: {' '.join(f'sparkd {help_of} --help'.split())}"]
    assert first == f"sparkd: {reason}"


def test_a_wrong_word_is_printed_without_what_a_terminal_would_obey() -> None:
    for words in (("recipe", "\x1b[2J"), ("status", "--\x1b[2J"), ("status", "\x1b[2J")):
        assert "\x1b" not in sparkd(*words).stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="is about another user")
def test_a_user_who_may_not_do_it_gets_the_command_with_sudo() -> None:
    with NamedTemporaryFile("w", suffix=".toml") as config:  # pytest's folders are for root alone
        print('[engine]\nmodels_dir = "/mnt/models"', file=config, flush=True)
        Path(config.name).chmod(0o644)
        sparkd("units", "check", config=config.name)  # imports, which only root may be able to read
        os.seteuid(65534)
        try:
            done = sparkd("units", "install", config=config.name)
        finally:
            os.seteuid(0)
    assert done.returncode == 2, done
    assert done.stderr.splitlines()[-1] == "hint: sudo sparkd units install"


@needs_no_agent
@pytest.mark.skipif(os.geteuid() != 0, reason="is about another user")
def test_a_configuration_that_this_user_may_not_read_is_not_called_wrong() -> None:
    with NamedTemporaryFile("w", suffix=".toml") as config:  # for root alone
        sparkd("status", config=config.name)
        os.seteuid(65534)
        try:
            done = sparkd("status", config=config.name)
        finally:
            os.seteuid(0)
    lines = ["not running: this user may not read the configuration", "next: sudo sparkd status"]
    assert done.stdout.splitlines() == lines
