"""Kernel settings: those of the recipe, and those known to break engines."""

from __future__ import annotations

from msgspec import Struct

from sparkd.host import Host, kernel
from sparkd.lib.text import GIB, size
from sparkd.preflight.check import About, Check, Level, Problem, Verdict, verdict

MOST_RESERVED_BYTES = 8 * GIB
MOST_HUGE_PAGES_BYTES = GIB
FEWEST_PIDS = 8192
NEVER_OVERCOMMIT = 2


class Setting(Struct, frozen=True):
    name: str
    wanted: str
    found: str | None
    """None: this kernel has no such setting."""


class KernelFacts(Struct, frozen=True):
    wanted: tuple[Setting, ...]
    reserved_bytes: int
    """vm.min_free_kbytes."""
    overcommit: int
    """vm.overcommit_memory."""
    pid_max: int
    huge_pages_bytes: int


class KernelSettings(Check[KernelFacts], frozen=True):
    """The kernel's settings match the recipe's, and none is known to break engines."""

    wanted: tuple[tuple[str, str], ...] = ()
    """Names and values of the recipe's host.sysctls."""
    id = "kernel-settings"
    about = About(
        levels=(Level.WARN, Level.UNKNOWN),
        reads="/proc/sys, as far as named; /proc/meminfo",
        source="tonyd2wild/GLM-5.3-Flash-NVFP4-DFlash2-2x-DGX-Spark pull request 19 (measured: raised min_free_kbytes "
        "fails vLLM's start); the kernel's documentation, admin-guide/sysctl/vm and mm/overcommit-accounting",
        page="""\
A recipe may list under `host.sysctls` the kernel settings that its source ran with. This check reports where the node's
differ, and changes nothing: `sparkd tune` shows, applies and reverts them. Whatever the recipe lists, it warns of

  vm.min_free_kbytes over 8 GiB   The kernel keeps that much free, and takes more than it off MemAvailable, which vLLM
                                  and unified-memory use: a few GiB were measured to fail vLLM's start.
  vm.overcommit_memory = 2        The kernel gives out only as much address space as there is memory and swap. CUDA
                                  reserves far more than it uses, and the engine ends with "Cannot allocate memory".
  kernel.pid_max under 8192       Threads count. An engine has some hundreds, and its compilers as many again.
  huge pages over 1 GiB           vm.nr_hugepages reserves memory that neither vLLM nor CUDA uses.

  warn     one of these, or a setting that differs from the recipe's, or that this kernel does not have. It never
           blocks: a source lists what it ran with, which is seldom what it needs.
  unknown  a setting can't be read as a number.

Advice on these settings conflicts, and others report that a clean boot needs none of it. A recipe should name only
those that matter.""",
    )

    def probe(self, host: Host) -> KernelFacts:
        files = host.files

        def number(name: str, otherwise: int) -> int:
            text = kernel.read_sysctl(files, name)
            if text is None:
                return otherwise
            if not text.isdecimal():
                raise ValueError(f"{name} is {text[:40]!r}, which is no number")
            return int(text)

        return KernelFacts(
            wanted=tuple(Setting(name, value, kernel.read_sysctl(files, name)) for name, value in self.wanted),
            reserved_bytes=number("vm.min_free_kbytes", 0) * 1024,
            overcommit=number("vm.overcommit_memory", 0),
            pid_max=number("kernel.pid_max", FEWEST_PIDS),
            huge_pages_bytes=host.meminfo().huge_pages_bytes,
        )

    def judge(self, facts: KernelFacts) -> Verdict:
        differing = [one for one in facts.wanted if one.found != one.wanted]
        # What `tune apply` would refuse comes first.
        problems = [_differs(one) for one in sorted(differing, key=lambda one: one.found is not None)]
        if facts.reserved_bytes > MOST_RESERVED_BYTES:
            reason = f"vm.min_free_kbytes keeps {size(facts.reserved_bytes)} from everybody, the engine too"
            problems.append(Problem(Level.WARN, reason, "sysctl -w vm.min_free_kbytes=1572864"))
        if facts.overcommit == NEVER_OVERCOMMIT:
            reason = "vm.overcommit_memory=2: CUDA reserves more addresses than there is memory"
            problems.append(Problem(Level.WARN, reason, "sysctl -w vm.overcommit_memory=0"))
        if facts.pid_max < FEWEST_PIDS:
            reason = f"kernel.pid_max={facts.pid_max}: an engine and its compilers have some thousand threads"
            problems.append(Problem(Level.WARN, reason, "sysctl -w kernel.pid_max=4194304"))
        if facts.huge_pages_bytes > MOST_HUGE_PAGES_BYTES:
            reason = f"{size(facts.huge_pages_bytes)} are set apart as huge pages, which the engine does not use"
            problems.append(Problem(Level.WARN, reason, "sysctl -w vm.nr_hugepages=0"))
        count = len(facts.wanted)
        wanted = f"the {count} that the recipe wants are set" if count else "the recipe wants none"
        return verdict(problems, f"{wanted}, nothing harmful")


def _differs(one: Setting) -> Problem:
    if one.found is None:
        reason = f"{one.name}: this kernel has no such setting, the recipe wants {one.wanted}"
        hint = "take it out of the recipe's host.sysctls, or boot the kernel that the recipe was made for"
        return Problem(Level.WARN, reason, hint)
    return Problem(Level.WARN, f"{one.name} is {one.found}, the recipe wants {one.wanted}", "sparkd tune apply")
