"""`sparkd units`: drop-ins are written and removed where the configuration needs it, and only files of ours."""

from pathlib import Path

import pytest
from tests.tree import Tree

from sparkd.base.config import Engine, Settings, units
from sparkd.base.config.units import DropIn
from sparkd.base.lib.errors import ConfigError
from sparkd.tools.setup.unit_files import UnitFiles

DEFAULTS = Settings()
ELSEWHERE = Settings(engine=Engine(models_dir="/data/big models", stop_grace_seconds=45))
HEAD, WORKER = DropIn("sparkd-head.service", "").path, DropIn("sparkd-worker.service", "").path
FOREIGN = "[Service]\nNice=5\n"


class Counted(UnitFiles):
    """Counts the reloads of systemd."""

    reloads = 0

    def daemon_reload(self) -> None:
        super().daemon_reload()
        self.reloads += 1


def install(root: Path, settings: Settings) -> list[str]:
    unit_files = Counted(root)
    changes = unit_files.install(units.dropins(settings))
    return changes + ["reload"] * unit_files.reloads


def test_install_makes_what_is_needed_once_and_reloads_once(tmp_path: Path) -> None:
    assert install(tmp_path, DEFAULTS) == []
    assert install(tmp_path, ELSEWHERE) == [f"wrote {HEAD}", f"wrote {WORKER}", "reload"]
    assert (tmp_path / HEAD[1:]).read_text() == units.dropins(ELSEWHERE)[0].text
    assert install(tmp_path, ELSEWHERE) == []
    assert install(tmp_path, DEFAULTS) == [f"removed {HEAD}", f"removed {WORKER}", "reload"]
    assert not (tmp_path / HEAD[1:]).parent.exists()


def test_install_refuses_before_any_change_where_a_file_is_not_ours(tree: Tree) -> None:
    foreign = tree.file(WORKER, FOREIGN)
    with pytest.raises(ConfigError, match="was not written by sparkd"):
        install(tree.root, ELSEWHERE)
    assert foreign.read_text() == FOREIGN
    assert not (tree.root / HEAD[1:]).exists()


def test_remove_takes_ours_and_leaves_the_rest(tree: Tree) -> None:
    tree.file(HEAD, f"{units.HEADER} of yesterday\n")
    foreign = tree.file(WORKER, FOREIGN)
    beside = tree.file(HEAD.replace("50-sparkd", "mine"), FOREIGN)
    assert UnitFiles(tree.root).install(units.no_dropins()) == [f"removed {HEAD}"]
    assert foreign.exists()
    assert beside.exists()
