"""Files for the forge: workflows run commands that are here; the form for issues needs output that a command prints."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from sparkd.tools.cli.main import build_parser

CHECKOUT = Path(__file__).parents[2]
FORGE = CHECKOUT / ".github"


def steps(name: str) -> str:
    """All that the workflow runs."""
    jobs = yaml.safe_load((FORGE / "workflows" / name).read_text())["jobs"].values()
    return "\n".join(step["run"] for job in jobs for step in job["steps"] if "run" in step)


def test_workflows_run_what_a_checkout_runs() -> None:
    (targets,) = re.findall(r"^\.PHONY: (.*)$", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    script = CHECKOUT / ".ci/run"
    assert script.stat().st_mode & 0o111
    assert "make test" in script.read_text()
    assert {"make check", "sudo .ci/run"} == set(steps("ci.yml").splitlines())
    made = re.findall(r"^\s*make (\w+)", steps("release.yml"), re.MULTILINE)
    assert set(made) == {"release"}
    assert {"check", "test", *made} <= set(targets.split())


def test_what_ci_runs_says_how_long_each_phase_and_all_of_them_took(tmp_path: Path) -> None:
    phases = tmp_path / "phases.mk"
    phases.write_text("first last:\n\t@true\n")
    command, env = ["make", "-o", "venv", "test", "PHASES=first last"], {"PATH": os.environ["PATH"]}
    env["MAKEFILES"] = str(phases)
    output = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True, check=True).stdout
    assert re.sub(r"\b\d\b", "N", output).splitlines() == [
        "== first",
        "== last (first took N s)",
        "== passed in N s (last took N s)",
    ]


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_no_token_stays_where_a_build_runs_what_it_downloads(name: str) -> None:
    jobs = yaml.safe_load((FORGE / "workflows" / name).read_text())["jobs"].values()
    kept = [step["with"] for job in jobs for step in job["steps"] if "checkout" in step.get("uses", "")]
    assert [words["persist-credentials"] for words in kept] == [False] * len(jobs)


def test_an_action_is_named_by_its_commit() -> None:
    """Its owner can move a tag, and its code runs beside the key that signs."""
    texts = [file.read_text() for file in (FORGE / "workflows").iterdir()]
    used = [action for text in texts for action in re.findall(r"\buses: *(.*)", text)]
    assert len(used) == 5
    assert not [action for action in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)]


def test_a_release_is_published_with_files_that_a_release_has() -> None:
    makes = (CHECKOUT / "packaging/release.py").read_text()
    published = steps("release.yml").partition("gh release create")[2]
    for name in ("NOTES.md", "sparkd.asc", "install.sh", "SHA256SUMS", "SHA256SUMS.asc"):
        assert name in published
        assert f'"{name}"' in makes


def test_an_issue_brings_the_output_of_commands_that_exist() -> None:
    form = yaml.safe_load((FORGE / "ISSUE_TEMPLATE/bug.yml").read_text())
    fields = {field["id"]: field for field in form["body"] if "id" in field}
    assert fields["summary"]["validations"]["required"]
    for name in ("summary", "log"):
        (command,) = re.findall(r"`sudo sparkd ([^`]+)`", fields[name]["attributes"]["label"])
        words = command.split()
        build_parser(words[0]).parse_args(words)


def test_no_address_is_invented() -> None:
    texts = [(CHECKOUT / "SECURITY.md").read_text(), *(file.read_text() for file in FORGE.rglob("*.yml"))]
    assert not [text for text in texts if re.search(r"\w@\w+\.\w|https?://(?!\$)", text)]
