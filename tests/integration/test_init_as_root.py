"""`sparkd init` as a person types it. Only root may, and these tests run as root."""

from pathlib import Path

import pytest

from sparkd.base.cluster.auth import read_keys
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import ExitCode
from sparkd.tools.cli.main import main


def test_the_command_prints_what_to_do_next_and_no_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster.key"
    monkeypatch.setenv("SPARKD_CLUSTER__KEY_FILE", str(path))
    for words in (["init", "--new-cluster-key"], ["init", "--new-cluster-key", "--rotate"]):
        assert main(words) == ExitCode.GOOD
        said = capsys.readouterr()
        assert f"wrote {path}" in said.out
        assert not any(key.hex() in said.out + said.err for key in read_keys(Files(), str(path)))
    assert main(["init", "--new-cluster-key"]) == ExitCode.USAGE


def test_the_check_of_the_configuration_looks_at_the_key_of_several_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster.key"
    (tmp_path / "sparkd.toml").touch()
    monkeypatch.setenv("SPARKD_CONFIG", str(tmp_path / "sparkd.toml"))
    monkeypatch.setenv("SPARKD_CLUSTER__KEY_FILE", str(path))
    monkeypatch.setenv("SPARKD_CLUSTER__NODES", '["10.254.0.1", "10.254.0.2"]')
    assert main(["config", "check"]) == ExitCode.CONFIG
    assert f"no cluster key: {path} does not exist" in capsys.readouterr().err
    assert main(["init", "--new-cluster-key"]) == ExitCode.GOOD
    assert main(["config", "check"]) == ExitCode.CONFIG
    said = capsys.readouterr().err
    assert "cluster.key" not in said
    assert "10.254.0.1" in said, "this machine has none of the addresses, which stays to be said"
