"""What GRUB's settings add to the command line of the next boot, as the shell of grub-mkconfig has them."""

import pytest
from tests.tree import Tree

from sparkd.base.host import Host
from sparkd.base.host.grub import read_next_boot

KEY = "GRUB_CMDLINE_LINUX_DEFAULT"


@pytest.mark.parametrize(
    ("grub", "drop_in", "words"),
    [
        pytest.param(f"{KEY}=kho=off", f'{KEY}="quiet"', ("quiet",), id="a drop-in replaces it"),
        pytest.param(f'{KEY}="kho=off"', f'{KEY}="${KEY} splash"', ("kho=off", "splash"), id="a drop-in appends"),
        pytest.param(f"{KEY}=a", f'export {KEY}="b ${{{KEY}}}"', ("b", "a"), id="in braces"),
        pytest.param(f"{KEY}=a", f'{KEY}="${{{KEY}:+${KEY} }}b"', ("a", "b"), id="only where there is one"),
        pytest.param("", f'{KEY}="${{{KEY}:+${KEY} }}b"', ("b",), id="where there is none"),
        pytest.param(f"{KEY}=a", f'{KEY}="${{{KEY}:-quiet}} b"', ("a", "b"), id="no default is needed"),
        pytest.param("", f'{KEY}="${{{KEY}:-quiet}} b"', ("quiet", "b"), id="a default"),
        pytest.param(f"{KEY}=a", f'{KEY}+=" b"', ("a", "b"), id="the shell's operator"),
        pytest.param(f"{KEY}=a", f"{KEY}='${KEY} b'", (f"${KEY}", "b"), id="as it stands"),
        pytest.param("GRUB_CMDLINE_LINUX_RECOVERY=kho=off", "", (), id="recovery mode alone"),
        pytest.param(f'{KEY}="a b" # kho=off', "", ("a", "b"), id="a comment"),
        pytest.param(f'#{KEY}="a"', "", (), id="commented out"),
        pytest.param(f"{KEY}=a", "GRUB_CMDLINE_LINUX=b", ("b", "a"), id="both"),
        pytest.param(f'{KEY}="a', "GRUB_CMDLINE_LINUX=b", ("b",), id="unparsable"),
        pytest.param(f'{KEY}="a \\\nb"', "", ("a", "b"), id="over two lines"),
        pytest.param(f'# quoted \\\n{KEY}="a"', "", ("a",), id="a comment has no next line"),
        pytest.param(f'{KEY}="a b"; export {KEY}', "", ("a", "b"), id="another command behind it"),
        pytest.param(f'{KEY}="a"', f'{KEY}="${{{KEY}:+${{{KEY}}} }}b"', ("a", "b"), id="before it, if any"),
        pytest.param(f"{KEY}=", "", (), id="empty"),
    ],
)
def test_grub_settings_are_read_as_the_shell_has_them(
    tree: Tree, grub: str, drop_in: str, words: tuple[str, ...]
) -> None:
    tree.file("/boot/vmlinuz-7.0.0-1019-nvidia")
    tree.file("/etc/default/grub", f"{grub}\n")
    tree.file("/etc/default/grub.d/50-more.cfg", f"{drop_in}\n")
    tree.file("/etc/default/grub.d/60-other.conf", f"{KEY}=no drop-in\n")
    assert read_next_boot(Host(tree.root).files) == ("7.0.0-1019-nvidia", words)


def test_a_setting_that_repeats_itself_ends(tree: Tree) -> None:
    tree.file("/etc/default/grub", f"{KEY}=a\n" + f'{KEY}="${KEY} ${KEY}"\n' * 100)
    assert len(" ".join(read_next_boot(Host(tree.root).files)[1])) < 10_000


@pytest.mark.parametrize(
    ("releases", "grub", "release"),
    [
        pytest.param(("6.17.0-1032-nvidia", "7.0.0-1019-nvidia"), "", "7.0.0-1019-nvidia", id="the latest"),
        pytest.param(
            ("6.17.0-1032-nvidia", "7.0.0-1019-nvidia"),
            'GRUB_DEFAULT="6.17.0-1032-nvidia"',
            "",
            id="another was chosen",
        ),
        pytest.param(("7.0.0-1019-nvidia", "7.0.0-1020-nvidia.old"), "", "7.0.0-1019-nvidia", id="a copy is none"),
        pytest.param(("6.17.0-999-nvidia", "6.17.0-1008-nvidia"), "", "6.17.0-1008-nvidia", id="by number"),
        pytest.param((), "", "", id="another boot loader"),
    ],
)
def test_the_next_boot_takes_the_latest_kernel(tree: Tree, releases: tuple[str, ...], grub: str, release: str) -> None:
    for installed in releases:
        tree.file(f"/boot/vmlinuz-{installed}")
    tree.file("/etc/default/grub", f"{grub}\n")
    assert read_next_boot(Host(tree.root).files)[0] == release
