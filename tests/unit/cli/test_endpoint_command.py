"""`sparkd endpoint`: the key's file, never the key; and the refusal of a wrong configuration."""

import json
from pathlib import Path

from tests.unit.commands import sparkd


def test_the_key_is_named_by_its_file_and_never_read(tmp_path: Path) -> None:
    (tmp_path / "api.key").write_text("sk-very-secret-content")
    (tmp_path / "sparkd.toml").write_text(
        f'[engine]\nrecipe = "tiny-cpu"\n[engine.secrets]\nVLLM_API_KEY = "{tmp_path}/api.key"\n'
    )
    config = tmp_path / "sparkd.toml"
    shown = json.loads(sparkd("endpoint", "--json", config=config).stdout)
    texts = sparkd("endpoint", config=config).stdout + sparkd("endpoint", "--client", "curl", config=config).stdout
    assert shown["key_file"] == f"{tmp_path}/api.key"
    assert shown["keyed"] is True
    assert shown["prompt_tokens"] + shown["answer_tokens"] == shown["context_tokens"] == 512
    assert "at most 384 of prompt" in texts
    assert f"{tmp_path}/api.key" in texts
    assert f"sudo sed 's/^/Authorization: Bearer /' {tmp_path}/api.key |" in texts
    assert "sk-very-secret" not in texts + json.dumps(shown)


def test_a_wrong_configuration_is_a_reason_with_a_hint_and_78() -> None:
    done = sparkd("endpoint", SPARKD_ENGINE__RECIPE="none-such")
    assert done.returncode == 78
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 2
