"""The kernel's records of a kill for want of memory: recorded ones of 5.15 and 6.18, and what users may name."""

import pytest
from tests.tree import Tree

from sparkd.base.host import Host
from sparkd.base.host.kernel import Record
from sparkd.base.host.meminfo import read_oom_kill_count
from sparkd.base.host.oom_kills import OomKill, find_oom_kills, names_container

ID = "92dede9aa7833cc0db5d7f780a46f57f0b7d627a15d9d0dd6233cd03544542ec"
OOM = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),"
SCOPE = f"/system.slice/docker-{ID}.scope"
OF_618 = """\
python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
Tasks state (memory values in pages):
[  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name
[  18079]     0 18079     4170     1851      224     1627         0    73728        0             0 systemd-nspawn
[  29506]     0 29506    32894    11541    11465       76         0   217088        0             0 sparkd
[  29907]     0 29907   669159   666593   666560       33         0  5394432        0             0 python3
[  30434]     0 30434    83017    30022    29984       38         0   303104        0             0 cicc
[  30439]     0 30439    80559    29754    29728       26         0   299008        0             0 cicc
oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/sparkd-bed.a83b1b5c/spark1,\
task_memcg=/sparkd-bed.a83b1b5c/spark1,task=python3,pid=29907,uid=0
Memory cgroup out of memory: Killed process 29907 (python3) total-vm:2676636kB, anon-rss:2666240kB, file-rss:132kB, \
shmem-rss:0kB, UID:0 pgtables:5268kB oom_score_adj:0
"""
"""Recorded on 6.18.44, the table and the registers before it shortened."""
GLOBAL = f"""\
Tasks state (memory values in pages):
[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name
[3610086]     0 3610086   309524     1191   118784        0          -998 containerd-shim
[ 411856]     0 411856  1198619   337723  3850240        0             0 core
oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=docker-{ID}.scope,mems_allowed=0,global_oom,\
task_memcg={SCOPE},task=core,pid=411856,uid=0
"""
"""Public reports: a table of 5.15, a kill of a container's process where the machine ran out of memory."""


def kills(text: str) -> list[OomKill]:
    return list(find_oom_kills(Record(number, 100.0 + number, line) for number, line in enumerate(text.splitlines())))


def test_a_kill_names_its_victim_the_limit_and_the_largest_processes() -> None:
    (kill,) = kills(OF_618)
    assert kill.seconds == 108.0
    assert kill.group == "/sparkd-bed.a83b1b5c/spark1"
    assert kill.text == (
        "python3 (pid 29907, 2.5 GiB), at the memory limit of /sparkd-bed.a83b1b5c/spark1; the largest processes then: "
        "python3 2.5 GiB (pid 29907), cicc 117 MiB (pid 30434), cicc 116 MiB (pid 30439), sparkd 45 MiB (pid 29506)"
    )


def test_a_machine_that_ran_out_of_memory_is_no_containers_limit() -> None:
    (kill,) = kills(GLOBAL)
    assert names_container(kill.group, ID)
    assert kill.text.startswith("core (pid 411856, 1.3 GiB), at the whole machine's memory; the largest")


def test_a_kill_without_the_table_is_known_and_no_table_is_that_of_another_kill() -> None:
    *table, line = GLOBAL.splitlines()
    without_table = "core (pid 411856), at the whole machine's memory"
    assert kills(line)[0].text == without_table
    first, second = kills("\n".join((*table, line, line)))
    assert "the largest processes then" in first.text
    assert second.text == without_table
    (kill,) = kills("\n".join((*table, "Tasks state (memory values in pages):", line)))
    assert kill.text == without_table


@pytest.mark.parametrize(
    "group",
    [
        f"/user.slice/user-1000.slice/user@1000.service/docker-{ID}.scope",
        f"/user.slice/docker-{ID}.scope",
        f"/system.slice/jupyter.service/docker/{ID}",
        f"/system.slice/docker-{ID[:-1]}.scope",
        f"/system.slice/docker-{ID}x.scope",
        f"/system.slice/not-docker{ID}.scope",
        "/",
    ],
)
def test_a_group_that_a_user_may_have_named_is_no_container(group: str) -> None:
    assert not names_container(group, ID)


@pytest.mark.parametrize("group", [SCOPE, f"{SCOPE}/init.scope", f"/docker/{ID}", f"/a.slice/docker/{ID}/worker"])
def test_a_container_has_its_group_and_those_below(group: str) -> None:
    assert names_container(group, ID)


@pytest.mark.parametrize(
    "line",
    [
        # A cpuset's name holds what looks like the rest of the line.
        f"{OOM}cpuset=x,global_oom,task_memcg={SCOPE},task=a,pid=1,uid=0,global_oom,task_memcg=/u,task=a,pid=2,uid=1",
        # A program's name begins the line of its crash.
        f"oom-kill:constr[77]: segfault at 0 task_memcg={SCOPE},task=a,pid=1,uid=0",
    ],
)
def test_a_name_is_never_taken_for_a_record(line: str) -> None:
    assert kills(line) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [("a 1\noom_kill 7\nb 2\n", 7), ("oom_kills 7\n", None), ("oom_kill x\n", None), ("oom_kill\n", None), ("", None)],
)
def test_oom_kills_are_read_from_vmstat(tree: Tree, text: str, count: int | None) -> None:
    tree.file("/proc/vmstat", text)
    assert read_oom_kill_count(Host(tree.root).files) == count


def test_a_kernel_that_does_not_count_is_no_error(tree: Tree) -> None:
    assert read_oom_kill_count(Host(tree.root).files) is None
