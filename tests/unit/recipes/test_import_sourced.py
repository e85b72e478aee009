"""Files that a script sources: read where they lie beside it, and where no condition is in doubt."""

import os
from pathlib import Path

import pytest
from tests.unit.started_engines import LINE, RUN, imported

from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.text_file import read_owned_file
from sparkd.tools.importers.docker_line import read_script
from sparkd.tools.importers.variables import Variables

SOURCED = {
    "0/a.env": "export P=8001\nT=hf_abcdefghijklmnopqrstuvwxyz\n",
    "0/lib/b.sh": "f() { Q=1; }\nS=$((P * 2))\n",
    "0/lib/env.sh": 'ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"\n. "$ROOT/a.env"\n',
    "0/guarded.env": '[ -n "$DONE" ] && return\nDONE=1\n. ./guarded.env\nP=8001\n',
    "0/open.env": "P=1\n(\n",
    "0/latin.env": "P=1 # \xe4\n",
    "0/large.env": f"P=1 #{'x' * (1 << 16)}\n",
    "0/faulty.env": "P=1\nexport P\nvllm serve org/n\nPASSWORD=abc`SECRETREST\n",
    "0/others.env": "P=1\n",
    "0/bin/activate": "P=1\n. ./none\n",
    "c.env": "P=3\n",
}


@pytest.mark.parametrize(
    ("before", "port", "noted"),
    [
        ("source a.env", 8001, 0),
        ('if [[ -f $D/a.env ]]; then\n  set -a; . "$D/a.env"\n  set +a\nfi', 8001, 0),
        ("[ -f ./a.env ] && . ./a.env", 8001, 0),
        ('if [ -f "a.env" ]; then source a.env; fi', 8001, 0),
        ("f() { . ./a.env; }", None, 1),
        ('[ -f a.env ]\nif [ "$1" = x ]; then . a.env; fi', None, 0),
        ("q && . ./a.env", None, 0),
        (". ./a.env | q", None, 1),
        (". $D/../c.env", None, 1),
        (". $D/lib/none.sh", None, 1),
        ("cd lib && . ./b.sh\nP=$S", None, 0),
        ("P=4; . lib/b.sh; P=$S", 8, 0),
        (". $D/link.env", None, 1),
        (". linked/a.env", None, 1),
        (". lib/env.sh", 8001, 0),
        ('. lib/b.sh; . "$(dirname "${BASH_SOURCE[0]}")/a.env"', 8001, 0),
        (". ./guarded.env", 8001, 1),
        ("P=4; . ./faulty.env", 4, 1),
        ("P=4; . ./open.env", 4, 1),
        ("P=4; . ./latin.env", 4, 1),
        ("P=4; . ./large.env", 4, 1),
        pytest.param("P=4; . ./others.env", 4, 1, marks=pytest.mark.skipif(os.geteuid() != 0, reason="gives a file")),
        pytest.param(f"P=4; . ./{'a' * 256}", 4, 1, id="long name"),
        pytest.param(f"{'. ./a.env; ' * 16}P=4; . ./a.env", 4, 1, id="17 files"),
        ("P=4; . bin/activate", 4, 0),
        ("if [ ! -f a.env ]; then . ./a.env; fi", None, 0),
        ("if [ -f a.env ]; then echo; fi; if q; then . ./a.env; fi", None, 0),
        ("[ -f a.env ] || . ./a.env", None, 0),
        ("if [ -f a.env ] && q; then . ./a.env; fi", None, 0),
        ("if [ -f a.env ]; then echo x; set -o allexport; . ./a.env; fi", 8001, 0),
        ("if [ -f a.env ]; then echo x; else\n . ./a.env; fi", None, 0),
        ("[ -f a.env ] && echo x\nq && . ./a.env", None, 0),
        ("q && [ -f a.env ] && . ./a.env", None, 0),
        ("[ -f a.env ] && (q) && . ./a.env", None, 0),
        ("[ -f a.env ] && set -a || . ./a.env", None, 0),
        ("test -f a.env && set -a && . ./a.env", 8001, 0),
    ],
)
def test_a_file_that_a_script_sources_is_read_if_it_lies_beside_it(
    tmp_path: Path, before: str, port: int | None, noted: int
) -> None:
    for name, content in SOURCED.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(content, "latin-1")
    if os.geteuid() == 0:
        os.chown(tmp_path / "0/others.env", 1, 1)
    (tmp_path / "0/link.env").symlink_to("a.env")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/a.env").write_text("P=9\n")
    (tmp_path / "0/linked").symlink_to("../other")
    result = imported(tmp_path, f'D="$(cd "$(dirname "$0")" && pwd)"\n{before}\n{RUN} --seed $T')
    assert result.recipe.args.get("port") == port
    assert len([note for note in result.notes if "not read: give what it sets" in note]) == noted
    assert "hf_abc" not in result.text
    assert "SECRETREST" not in str(result.notes)


def test_what_a_sourced_file_starts_has_the_line_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0/a.env").write_text(f"if x; then\n{LINE}\nfi\n")
    assert imported(tmp_path, "docker ps\n\n. ./a.env").notes == [
        "line 3: what begins in line 3 decides whether it runs: taken as if it does"
    ]


def test_files_that_source_each_other_are_read_16_times_in_all() -> None:
    paths: list[str] = []
    text = "".join(f". /{name}\n" for name in "abcdefgh") + "(\n"

    def read(path: str) -> str:
        paths.append(path)
        return text

    launches = read_script(text, Variables({}), read)
    assert len(paths) == 16
    assert len(launches) == 8, "each command of the script is noted as not read"


def test_a_file_is_not_read_where_a_folder_on_its_way_has_become_a_link(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/a.env").write_text("P=9\n")
    (tmp_path / "given").mkdir()
    (tmp_path / "given/lib").symlink_to("../other")
    with pytest.raises(ConfigError, match="leads out of"):
        read_owned_file(tmp_path / "given/lib/a.env", str(tmp_path / "given"))
    assert read_owned_file(tmp_path / "other/a.env", str(tmp_path / "other")) == ("P=9\n", os.getuid())
