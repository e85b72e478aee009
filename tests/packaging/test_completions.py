"""Completions in real shells: commands, options, and words from files, which no shell may run."""

import os
import pty
import resource
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import completions

DEADLINE_SECONDS = 20.0
LINES = (
    ("sparkd rec", "recipe"),
    ("sparkd recipe sh", "show"),
    ("sparkd preflight --dr", "--dry-run"),
    ("sparkd preflight --explain stray-w", "stray-workers"),
    ("sparkd recipe show nemotron-3-s", "nemotron-3-super-nvfp4"),
    ("sparkd init --recipe nemotron-3-s", "nemotron-3-super-nvfp4"),
    ("sparkd model check My-M", "My-Model"),
    ("sparkd model sync --to 10.0.0.", "10.0.0.2"),
    ("sparkd endpoint --client open-w", "open-webui"),
    ("sparkd drill ra", "rank"),
    ("sparkd image sync vllm/vllm-o", "vllm/vllm-openai:v1"),
    ("sparkd use --image vllm/vllm-o", "vllm/vllm-openai:v1"),
    ("sparkd recipe import --container my-v", "my-vllm"),
    ("sparkd tune-recipe --knob max-num-s", "max-num-seqs="),
)
STARTS = {"bash": ("bash", "--noprofile", "--norc", "-i"), "zsh": ("zsh", "-f", "-i")}
PREPARATIONS = {
    "bash": "source {script}; bind 'set enable-bracketed-paste off'",
    "zsh": "fpath=({folder} $fpath); autoload -Uz compinit && compinit -u -D; unsetopt ZLE_BRACKETED_PASTE",
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a tree that has them where the package has them."""
    root = tmp_path_factory.mktemp("scripts")
    for shell, path in completions.FILES.items():
        (root / path).parent.mkdir(parents=True)
        (root / path).write_text(completions.render(shell))
    return root


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """`sparkd` of this checkout, two nodes, and models of which one has a name that a shell would run."""
    folder = tmp_path_factory.mktemp("machine")
    for name in ("My-Model", "My-`touch owned`", "My-$(touch owned)", "My-;touch owned"):
        (folder / "models" / name).mkdir(parents=True)
        (folder / "models" / name / "config.json").write_text("{}")
    (folder / "sparkd.toml").write_text(
        f'[engine]\nmodels_dir = "{folder}/models"\n[cluster]\nnodes = ["10.0.0.2", "$(touch owned)"]\n'
    )
    (folder / "bin").mkdir()
    (folder / "bin/sparkd").symlink_to(Path(sys.executable).parent / "sparkd")
    docker = folder / "bin/docker"
    docker.write_text(
        '#!/bin/sh\n[ "$1" = ps ] && echo my-vllm || printf "%s\\n" vllm/vllm-openai:v1 "a\\$(touch owned)"\n'
    )
    docker.chmod(0o755)
    path = f"{folder}/bin:/usr/bin:/bin"
    return {"PATH": path, "HOME": str(folder), "SPARKD_CONFIG": str(folder / "sparkd.toml"), "TERM": "dumb"}


@contextmanager
def terminal(command: tuple[str, ...], env: dict[str, str]) -> Iterator[int]:
    """A program on a terminal of its own."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(env["HOME"])
        os.execvpe(command[0], command, env)
    try:
        yield terminal
    finally:
        os.close(terminal)  # SIGHUP
        os.waitpid(pid, 0)


def read_until(terminal: int, wanted: str) -> str:
    shown, deadline = "", time.monotonic() + DEADLINE_SECONDS
    while wanted not in shown and (left := deadline - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace").replace("\x07", "")
    assert wanted in shown, shown
    return shown


@pytest.mark.parametrize("shell", STARTS)
def test_tab_completes_on_a_terminal(shell: str, scripts: Path, environment: dict[str, str]) -> None:
    script = scripts / completions.FILES[shell]
    with terminal(STARTS[shell], environment) as keys:
        prepared = PREPARATIONS[shell].format(script=script, folder=script.parent)
        os.write(keys, f"{prepared}; echo re''ady\n".encode())
        read_until(keys, "ready")
        for typed, whole in LINES:
            os.write(keys, f"{typed}\t".encode())
            read_until(keys, whole)
            os.write(keys, b"\x15")  # Ctrl-U
    assert not (Path(environment["HOME"]) / "owned").exists()


@pytest.mark.parametrize(("typed", "whole"), LINES)
def test_fish_completes(typed: str, whole: str, scripts: Path, environment: dict[str, str]) -> None:
    script = scripts / completions.FILES["fish"]
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {script}; complete -C '{typed}'"],
        capture_output=True, text=True, check=True, env=environment, cwd=environment["HOME"], timeout=60,
    )  # fmt: skip
    assert whole in [line.partition("\t")[0] for line in done.stdout.splitlines()], done
    assert not (Path(environment["HOME"]) / "owned").exists()


def cpu_seconds() -> float:
    """Of the programs that have ended: the machine may be busy with others."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("kind", ["recipes", "models", "nodes"])
def test_words_from_files_come_fast_and_are_plain(kind: str, environment: dict[str, str]) -> None:
    took = []
    for _ in range(5):
        began = cpu_seconds()
        done = subprocess.run(
            ["sparkd", "__complete", kind], capture_output=True, text=True, check=True, env=environment
        )
        took.append(cpu_seconds() - began)
    assert done.stdout
    assert not set(done.stdout) & set("$`;() ")
    assert min(took) < 0.15


def test_words_of_an_unreadable_configuration_are_none(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sparkd.toml").write_text("[cluster\n")
    for kind, config in (("nodes", tmp_path / "sparkd.toml"), ("nodes", "/nowhere"), ("other", "/dev/null")):
        env = {**environment, "SPARKD_CONFIG": str(config)}
        done = subprocess.run(["sparkd", "__complete", kind], capture_output=True, text=True, check=False, env=env)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("shell", "check"), [("bash", "-n"), ("zsh", "-n"), ("fish", "-n")])
def test_scripts_parse(shell: str, check: str, scripts: Path) -> None:
    assert shutil.which(shell), "packaging/tools.sh as root"
    subprocess.run([shell, check, str(scripts / completions.FILES[shell])], check=True)
