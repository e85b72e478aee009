"""What a text is, by its beginning: a form that is read, or another kind, which is named with what to do."""

import io
from pathlib import Path

import pytest
from tests.unit.commands import stdin_of
from tests.unit.started_engines import IMAGE, LINE, imported

from sparkd.base.lib.errors import ConfigError
from sparkd.tools.cli import main


@pytest.mark.parametrize(
    ("text", "looks"),
    [
        ("\n# nothing\n", "an empty file: name the one"),
        ("# syntax=docker/dockerfile:1\nARG V=1\n# why\nFROM $V\nCMD vllm serve org/m\n", "a Dockerfile: import what"),
        ("#!/usr/bin/env python3\nrun(['docker', 'run'])\n", "a Python script: write"),
        ("from vllm import LLM\nx: int = 1\n", "a Python script: write"),
        (f"# x\n[Unit]\nA=b\n[Container]\nImage={IMAGE}\nExec=vllm serve m\n[Service]\nA=b\n",
         "a quadlet of podman: import the unit"),
        ("apiVersion: v1\nkind: Pod\n---\napiVersion: v1\n", "a Kubernetes manifest: write image"),
        ("kind: Pod\napiVersion: v1\n", "a Kubernetes manifest: write image"),
        ("#!/bin/bash\n# x\n./serve.sh\n", "a shell script without vLLM: import the script"),
        ("# Title\n\nFirst that, then: this.\n", "Markdown: save the command"),
        (f"# Title\n\nDon't wait:\n\n```\n{LINE}\n```\n", "Markdown: save the command"),
        (f"# Title\n\nRun it:\n\n```bash\n{LINE}\n```\n", "Markdown: save the command"),
        (f"Run it:\n```\n{LINE}\n```\n", "Markdown: save the command"),
        (f"# {LINE}", "an empty file: name the one"),
        ("hello\n", "plain text: write the command"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_named_with_what_to_do(
    text: str, looks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "given"
    path.write_text(text)
    assert main.main(["recipe", "import", str(path)]) == 78
    alone = capsys.readouterr().err
    with stdin_of(io.StringIO(text)):
        assert main.main(["recipe", "import", "-"]) == 78
    for error in (alone, capsys.readouterr().err):
        assert f": line 1: looks like {looks}" in error
        assert "what is read: recipes of eugr, sparkrun and NVIDIA, command lines, scripts" in error


@pytest.mark.parametrize("start", ["#!/bin/bash\n", "#!/bin/sh\n# x\n", ""])
def test_a_fault_of_a_script_that_writes_markdown_keeps_its_line(start: str, tmp_path: Path) -> None:
    text = f"{start}cat >a.md <<E\n```\nx\n```\nE\ndocker run -Z x\n"
    with pytest.raises(ConfigError, match=f"line {text.count(chr(10))}: docker's option -Z"):
        imported(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("# mine\n  model: a/b\n  command: [\n", "line 3: while parsing a flow"),
        ('my model: x\ncommand: "vllm\n', "line 2: while scanning a quoted scalar"),
        ("# r\n- model: a/b\n", "line 1: must be a mapping"),
    ],
)
def test_a_fault_of_yaml_keeps_its_line(
    text: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(text)
    assert main.main(["recipe", "import", str(path)]) == 78
    assert f"given.yaml: {fault}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "start",
    [
        "#!/opt/python-env/bin/bash\n",
        "#!/bin/sh\n# of ImageMagick\nimport -window root x.png\n",
        "[ -d /x ] || mkdir /x\ncat >x.container <<E\n[Container]\nImage=x\nE\n",
    ],
)
def test_a_script_that_begins_like_another_kind_is_read(start: str, tmp_path: Path) -> None:
    assert imported(tmp_path, f"{start}{LINE}\n").recipe.model.repo == "org/m"


@pytest.mark.parametrize(
    "text",
    [
        f"cat >docker-compose.yml <<EOF\nservices:\n  a: {{image: other}}\nEOF\n{LINE}\n",
        f"#!/bin/sh\n# what\n\ncat > recipe.yaml <<'EOF'\nmodel: a\ncommand: b\nEOF\n{LINE}\n",
        f"sudo tee /etc/systemd/system/x.service <<-EOF\n[Service]\nExecStart=/bin/other\nEOF\n{LINE}\n",
    ],
)
def test_what_a_script_writes_into_a_file_does_not_make_it_one(text: str, tmp_path: Path) -> None:
    result = imported(tmp_path, text)
    assert result.recipe.image.ref == IMAGE
    assert result.notes == []
    assert "(command line)" in result.text
