"""Settings files below a root of the test's own, and the faults found in them."""

from pathlib import Path

import pytest

from sparkd.base.config import load_settings
from sparkd.base.lib.errors import ConfigError


def write(root: Path, text: str, name: str = "sparkd.toml") -> Path:
    path = root / "etc/sparkd" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def faults(root: Path, env: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_settings(env or {}, root)
    assert caught.value.code == 78
    return caught.value.reason.splitlines()
