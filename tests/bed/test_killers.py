"""Who ended a rank from outside has a name: programs and clients that really do, on a booted node with real vLLM.

Programs of Debian that a node of the bed lacks (sudo, earlyoom) are downloaded here, and installed there.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.bed.command import run
from tests.bed.conftest import MakeNode
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import CONFIGURATION, SparkdNode
from tests.bed.victims import engine_core, main_of_engine

pytestmark = pytest.mark.whole

END_SECONDS = 60.0
SPREE_SECONDS = 3.0
"""earlyoom ends what else it finds, such as a look at the journal."""


@pytest.fixture(scope="module")
def spark(make_node: MakeNode, package: Path, tmp_path_factory: pytest.TempPathFactory) -> SparkdNode:
    made = SparkdNode(make_node("trixie", package))
    folder = tmp_path_factory.mktemp("debs")
    run("sh", "-c", f"cd {folder} && apt-get download -q -o APT::Sandbox::User=root sudo earlyoom")
    for deb in folder.glob("*.deb"):
        made.node.put(deb, f"/root/{deb.name}")
    made.node.sh("dpkg --install /root/sudo_*.deb /root/earlyoom_*.deb && systemctl disable --now earlyoom")
    made.configure(CONFIGURATION)
    made.start()
    return made


def of_docker(command: str) -> Callable[[SparkdNode], str]:
    return lambda _: f"docker {command} sparkd-rank0"


def of_sudo(number: str, victim: Callable[[SparkdNode], int]) -> Callable[[SparkdNode], str]:
    return lambda spark: f"sudo -u root /usr/bin/kill {number} {victim(spark)}"


def of_earlyoom(_: SparkdNode) -> str:
    """It ends what it is to prefer, since its floor is above what any machine has free."""
    arguments = 'EARLYOOM_ARGS="-m 99,98 -s 100,99 --prefer ^VLLM --avoid ^(dockerd|containerd|systemd|sparkd) -r 0"'
    unit = "systemctl start earlyoom; sleep 1; systemctl stop earlyoom"
    return f"echo {shlex.quote(arguments)} >/etc/default/earlyoom; {unit}"


KILLERS: dict[str, tuple[Callable[[SparkdNode], str], str]] = {
    "docker kill": (of_docker("kill"), r"dockerd sent signal 9 at .*docker kill"),
    "docker stop": (of_docker("stop"), r"dockerd sent signal 15 at .*docker stop"),
    "docker rm -f": (of_docker("rm --force"), r"dockerd sent signal 9 at .*docker kill"),
    "docker restart": (of_docker("restart"), r"dockerd sent signal 15 at .*docker stop"),
    "docker kill -s TERM": (of_docker("kill --signal=TERM"), r"dockerd sent signal 15 at .*docker stop"),
    "sudo kill -9 of its core": (of_sudo("-9", engine_core), r"root ended its process \d+ with sudo at"),
    "sudo kill of its API server": (of_sudo("-15", main_of_engine), r"root ended its process \d+ with sudo at"),
    "earlyoom": (of_earlyoom, r"earlyoom sent SIG(TERM|KILL) to its process \d+ at"),
    "systemctl restart docker": (lambda _: "systemctl restart docker", r"dockerd was stopped or restarted"),
    "kill -9 by root's shell": (
        lambda spark: f"kill -9 {engine_core(spark)}",
        r"neither the journal nor dockerd's events say who it was",
    ),
}
"""The command that ends the rank, and how the cause names it. The last one leaves no trace."""


@pytest.mark.parametrize("killer", KILLERS)
def test_the_killer_is_named(killer: str, spark: SparkdNode) -> None:
    command, named = KILLERS[killer]
    spark.forget_failures()
    spark.await_serving()
    cursor = spark.cursor()
    spark.node.sh(f"nohup sh -c {shlex.quote(command(spark))} >/root/killer.log 2>&1 &")
    time.sleep(SPREE_SECONDS)
    wait_for(lambda: spark.ends_since(cursor), END_SECONDS, "the rank's end")
    (end,) = spark.ends_since(cursor)
    print(f"{killer}: {end}")
    assert re.search(named, end), end
    spark.await_serving()
