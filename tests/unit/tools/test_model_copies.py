"""Models that are copied to another node: by whose rights they are read, and what is announced meanwhile."""

import os
import tempfile
from pathlib import Path

import pytest
from tests.unit.tools.ssh_nodes import make_peer, write_program

from sparkd.tools.models.model_files import send_model


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads what is not the owner's")
@pytest.mark.parametrize(("owner", "wanted"), [(65534, ["--copy-as=65534:65534"]), (0, [])])
def test_root_reads_a_users_model_with_their_rights(bin_folder: Path, owner: int, wanted: list[str]) -> None:
    """rsync follows links: one to /etc/shadow would give its owner that file on the other node."""
    peer = make_peer(bin_folder, namei="exit 0", sparkd="exit 0")
    write_program(
        bin_folder / "rsync", f'printf "%s\\n" "$@" >>{bin_folder}/words; echo "Total transferred file size: 0 bytes"'
    )
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:  # only root may write on the way there
        os.chown(folder, owner, owner)
        send_model(folder, lambda _: None, peer, quick=True)
    # Twice: rsync counts what there is to send, and sends it.
    assert [word for word in (bin_folder / "words").read_text().splitlines() if "copy-as" in word] == 2 * wanted


def test_a_check_there_is_announced_since_it_takes_minutes(bin_folder: Path, tmp_path: Path) -> None:
    peer, lines = make_peer(bin_folder, namei="exit 0", sparkd="echo whole"), list[str]()
    write_program(bin_folder / "rsync", 'echo "Total transferred file size: 0 bytes"')
    send_model(str(tmp_path), lines.append, peer, quick=False)
    assert lines == ["far: nothing to send", "far: its files are checked there", "far: whole"]
