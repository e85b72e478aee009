"""What starts vLLM today, in the forms that people publish for a Spark: imported, and started by the commands shown."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet
from tests.bed import readme
from tests.bed.command import BedError
from tests.bed.conftest import MakeNode
from tests.bed.engine_image import CHANGES, NAME, SITE
from tests.bed.node import Node
from tests.bed.processes import wait_for
from tests.bed.published_forms import ALL, IMAGE, NVIDIA, REAL, SMALL, TOKEN, Form
from tests.bed.space import REPOSITORY
from tests.bed.sparkd_node import SERVING_SECONDS as STEP_SECONDS
from tests.bed.sparkd_node import SparkdNode
from tests.unit import foreign_recipes as foreign

FORMS, RECIPES = "/root/forms", "/etc/sparkd/recipes"
PROGRAM = r"^\S*python3\S* (?:-IS )?\S*/vllm serve "
PROGRAMS = Path(__file__).with_name("programs")
ALIKE = (
    (PROGRAMS / "vllm_alike.py", "/opt/vllm-env/bin/vllm"),
    (REPOSITORY / "tests/integration/programs/endpoint_alike.py", "/opt/alike/endpoint_alike.py"),
)
PREPARE = f"""\
set -e
chmod 755 /opt/vllm-env/bin/vllm
echo 'export VIRTUAL_ENV=/opt/vllm-env PATH=/opt/vllm-env/bin:$PATH' >/opt/vllm-env/bin/activate
printf '#!/bin/sh\\n' >/usr/bin/nvidia-container-runtime-hook
chmod 755 /usr/bin/nvidia-container-runtime-hook
python3 /root/nvidia_runtime.py
systemctl restart docker
docker run --name made --entrypoint rm {NAME} -r /{SITE}/vllm
docker create --name whole {NAME}
docker commit --change 'ENV VLLM_CPU_KVCACHE_SPACE=1' whole {IMAGE}-real
docker commit --change 'ENV VLLM_CPU_KVCACHE_SPACE=1' --change 'ENTRYPOINT ["env"]' whole {NVIDIA}-real
docker cp /opt/vllm-env/bin/vllm made:/usr/local/bin/vllm
docker cp /opt/alike made:/opt/alike
docker commit --change 'ENTRYPOINT ["vllm","serve"]' --change 'CMD []' made {IMAGE}-alike
docker commit --change 'ENTRYPOINT ["env"]' --change 'CMD []' made {NVIDIA}-alike
docker rm made whole
"""
"""With the hook docker takes --gpus; there is no GPU to give."""
CONFIGURATION = """\
[memory]
contiguous_gib = 0
[preflight]
skip = ["gpu"]
[readiness]
warm = "never"
"""
OF_THE_SYSTEM = {
    "PATH", "HOME", "HOSTNAME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "PWD", "OLDPWD", "SHLVL", "_",
    "VIRTUAL_ENV", "INVOCATION_ID", "SYSTEMD_EXEC_PID", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE",
    "JOURNAL_STREAM", "NVIDIA_VISIBLE_DEVICES",
}  # fmt: skip
"""Variables that no form sets; docker has the last one from --gpus, and a Spark has one GPU."""

OF_THE_IMAGE = {word.partition("=")[0] for line in CHANGES if line.startswith("ENV ") for word in line.split()[1:]}
OF_THE_IMAGE.add("VLLM_CPU_KVCACHE_SPACE")
"""Its variables: what is started without docker, or by an image without vLLM itself, has none of them."""


class Started(NamedTuple):
    flags: Mapping[str, list[str]]
    """And the model under an empty name."""
    env: Mapping[str, str]
    rights: Mapping[str, object]
    """Of its container, if it is in one, what the form sets: HostConfig, as docker has it."""


@pytest.fixture(scope="module")
def spark(make_node: MakeNode, package: Path) -> SparkdNode:
    spark = SparkdNode(make_node("trixie", package))
    readme.prepare(spark.node, package)
    spark.node.write("/etc/sparkd/sparkd.toml", CONFIGURATION)
    for source, target in ALIKE:
        spark.node.put(source, target)
    spark.node.put(PROGRAMS / "nvidia_runtime.py", "/root/nvidia_runtime.py")
    spark.node.sh(PREPARE, timeout=300)
    return spark


@pytest.fixture
def clean(spark: SparkdNode) -> Iterator[SparkdNode]:
    yield spark
    spark.node.sh(
        f"systemctl stop {spark.unit} by-hand; docker rm --force $(docker ps --all --quiet);"
        f"rm -rf {FORMS} {RECIPES}/* /etc/sparkd/conf.d /etc/systemd/system/by-hand.service",
        check=False,
    )
    spark.forget_failures()


def use_images(node: Node, kind: str) -> None:
    for image in (IMAGE, NVIDIA):
        node.run("docker", "tag", f"{image}-{kind}", image)


def look(node: Node) -> Started:
    """At the process that serves."""
    wait_for(lambda: bool(node.pids(PROGRAM)), 30, "the program vllm")
    pid = node.pids(PROGRAM)[0]
    words = node.read(f"/proc/{pid}/cmdline").split("\0")[:-1]
    words = words[words.index("serve") + 1 :]
    model = [] if words[0].startswith("-") else [words.pop(0)]
    flags = foreign.meaning(words)
    named = flags.pop("model", [])
    env = dict(line.partition("=")[::2] for line in node.read(f"/proc/{pid}/environ").split("\0") if "=" in line)
    return Started({**flags, "": model or named}, env, rights(node))


def rights(node: Node) -> dict[str, object]:
    listed = json.loads(node.sh("docker inspect $(docker ps --quiet)", check=False).stdout or "[]")
    host = listed[0]["HostConfig"] if listed else {"Ulimits": []}
    limits = {f"limit {one['Name']}": (one["Soft"], one["Hard"]) for one in host["Ulimits"] or ()}
    given = {name: host.get(name) for name in ("Privileged", "Memory", "IpcMode", "ShmSize")}
    by_default = {"Privileged": False, "Memory": 0, "IpcMode": "private", "ShmSize": 64 << 20}
    return {**limits, **{name: value for name, value in given.items() if value not in (None, by_default[name])}}


def start_by_hand(node: Node, form: Form, folder: str) -> Started:
    use_images(node, "alike")
    command = (form.by_hand or f"setsid bash {form.file} >/dev/null 2>&1 &").replace("{file}", form.file)
    node.sh(f"cd {folder} && {command}")
    return look(node)


def end_by_hand(node: Node) -> None:
    node.sh("systemctl stop by-hand; docker rm --force $(docker ps --all --quiet)", check=False)
    for pid in node.pids(PROGRAM):
        node.kill(pid, 9)
    wait_for(lambda: not node.pids(PROGRAM), 20, "the end of what was started by hand")


def differences(form: Form, ours: Started, theirs: Started) -> list[str]:
    wanted = {name: values for name, values in theirs.flags.items() if name not in ("", "host", "port")}
    wanted.setdefault("served-model-name", [form.served])
    differing = [
        f"--{name}: {ours.flags.get(name)} instead of {wanted.get(name)}"
        for name in sorted({*wanted, *ours.flags} - {"", "host", "port"})
        if ours.flags.get(name) != wanted.get(name)
    ]
    differing += [
        f"{name}: {ours.env.get(name)} instead of {theirs.env.get(name)}"
        for name in sorted({*theirs.env, *ours.env} - OF_THE_SYSTEM - ({*foreign.ADDED, *OF_THE_IMAGE} - {*theirs.env}))
        if ours.env.get(name) != theirs.env.get(name)
    ]
    differing += [
        f"{name}: {ours.rights.get(name)} instead of {value}"
        for name, value in theirs.rights.items()
        if ours.rights.get(name) != value
    ]
    return differing


def serves(node: Node, form: Form) -> bool:
    request = {"model": form.served, "prompt": "hello", "max_tokens": 4}
    answer = node.post(form.port, "/v1/completions", request, 30)
    return answer.status == 200 and json.loads(answer.body)["usage"]["completion_tokens"] >= 1


def parameters() -> Iterator[ParameterSet]:
    for form in ALL:
        real = form.name in REAL
        yield pytest.param(form, "real" if real else "alike", id=form.name)
        if not real:
            yield pytest.param(form, "real", id=f"{form.name}-real", marks=pytest.mark.whole)


@pytest.mark.parametrize(("form", "engine"), list(parameters()))
def test_a_form_leads_to_an_endpoint(form: Form, engine: str, clean: SparkdNode) -> None:
    node, folder = clean.node, f"{FORMS}/{form.name}"
    node.sh(f"mkdir -p {folder}")
    for name, text in {**({form.file: form.text} if form.file else {}), **form.beside}.items():
        node.write(f"{folder}/{name}", text)
    theirs = start_by_hand(node, form, folder)
    if form.file:
        end_by_hand(node)
    use_images(node, engine)
    what = form.file or f"--container {form.name}"
    done = node.sh(f"cd {folder} && sudo sparkd recipe import {what} {form.options} --write {RECIPES}", check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    notes = [re.sub(r"^[^:]*: ", "", line) for line in done.stderr.splitlines()]
    retagged = [f"line 1: image: {IMAGE} is another image now"] * (not form.file and engine == "real")
    expected = [*retagged, *form.notes]
    assert [note[: len(start)] for note, start in zip_longest(notes, expected, fillvalue="")] == expected
    assert "To an endpoint, in this order:" in done.stdout
    for step in re.findall(r"^  \d+\. (.*)$", done.stdout, re.MULTILINE):
        if not step.startswith(readme.NOT_RUN):
            began = time.monotonic()
            try:
                node.sh(f"cd /root && {step}", timeout=STEP_SECONDS, input=f"{TOKEN}\n")
            except BedError:
                print(node.journal(clean.unit), node.sh("docker logs sparkd-rank0", check=False))
                raise
            print(f"{time.monotonic() - began:5.1f} s  {step}")
    assert serves(node, form)
    ours = look(node)
    assert ours.flags[""] in (["/models/tiny"], ["/srv/models/tiny"])
    assert differences(form, ours, theirs) == []


TRAP = "touch /root/ran"
EVIL_OPTIONS = (
    f"--label 'x=$({TRAP})'", "--label \"$(printf 'e=\\033[2J')\"", f"--env 'A=$({TRAP})'",
    "--env \"$(printf 'B=1\\n2')\"",
    f"--env LD_PRELOAD=/root/forms/trap.so --env HF_TOKEN={TOKEN}", f"--volume \"{FORMS}/evil/\\$({TRAP}):/x\"",
    "--volume /etc:/e --volume /:/host", "--user 65534:65534", "--tmpfs /t:size=1m", f"--workdir '/$({TRAP})'",
    "--hostname evil --restart always --entrypoint sh",
)  # fmt: skip
EVIL_NAMES = (
    "../../images/json",
    "evil/../../info",
    "evil?size=1",
    "evil/archive?path=/",
    "$(touch /root/ran)",
    "\x1b[2J",
    "--all",
)
"""Of no container."""


def everything(node: Node) -> tuple[str, ...]:
    """Files, containers and processes of others than this look."""
    found = "find /etc /root /tmp /dev/shm /var/lib/sparkd /run/sparkd -xdev -printf '%p %i %s %T@ %m\\n' | sort"
    listed = "docker ps --all --format '{{.ID}} {{.State}}'; docker image ls --quiet | sort; docker volume ls | sort"
    return node.sh(found).stdout, node.sh(listed).stdout, " ".join(map(str, node.pids(".")))


def test_nothing_of_a_hostile_container_is_run_and_nothing_is_written(clean: SparkdNode) -> None:
    node = clean.node
    use_images(node, "alike")
    node.sh(f"mkdir -p {FORMS}/evil")
    command = f"{TRAP} & exec vllm serve org/tiny --served-model-name '$({TRAP})' --port 8090 {SMALL}"
    node.sh(f"cd {FORMS} && docker run -d --name evil {' '.join(EVIL_OPTIONS)} {IMAGE} -c {shlex.quote(command)}")
    look(node)
    before = everything(node)
    done = node.run("sparkd", "recipe", "import", "--container", "evil", check=False)
    refused = [node.run("sparkd", "recipe", "import", f"--container={name}", check=False) for name in EVIL_NAMES]
    after = everything(node)
    print(done.stdout, done.stderr)
    assert [one.returncode for one in refused] == [78] * len(refused)
    assert after == before
    for one in (done, *refused):
        assert (one.stdout + one.stderr).replace("\n", "").isprintable()
        assert TOKEN not in one.stdout + one.stderr
    assert done.returncode == 10
    for loss in (
        "--user 65534:65534",
        "--tmpfs /t:size=1m",
        "--volume /:/host",
        "--volume /etc:/e",
        "HF_TOKEN: its value",
    ):
        assert done.stderr.count(f"evil: line 1: {loss}") == 1
