"""The commands of Exec lines, as systemd.service(5) has them."""

import pytest

from sparkd.base.host.unit_commands import CommandLine, parse_command_lines


@pytest.mark.parametrize(
    ("value", "commands"),
    [
        ("/bin/a b  c", [("/bin/a", "b", "c")]),
        ("-/bin/a", [("/bin/a",)]),
        ("@/bin/a name b", [("/bin/a", "b")]),
        ("+-@/bin/a name", [("/bin/a",)]),
        ("!!/bin/a", [("/bin/a",)]),
        ("/bin/a 'b c' \"d 'e\"", [("/bin/a", "b c", "d 'e")]),
        (r'/bin/a b\x20c \s \\ "\"" \u00e9', [("/bin/a", "b c", " ", "\\", '"', "é")]),
        ("/bin/a b ; /bin/c", [("/bin/a", "b"), ("/bin/c",)]),
        (r"/bin/a \; b", [("/bin/a", ";", "b")]),
        ("/bin/a ';' b", [("/bin/a", ";", "b")]),
        ("/bin/a ''", [("/bin/a", "")]),
    ],
)
def test_command_lines_are_read_as_systemd_reads_them(value: str, commands: list[tuple[str, ...]]) -> None:
    assert [command.words for command in parse_command_lines(value)] == commands


def test_a_dash_says_that_failure_does_not_matter() -> None:
    assert parse_command_lines("-/bin/a") == (CommandLine(("/bin/a",), ignores_failure=True),)
    assert parse_command_lines("/bin/a -b") == (CommandLine(("/bin/a", "-b"), ignores_failure=False),)
