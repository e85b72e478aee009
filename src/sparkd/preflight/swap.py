"""Swap: on unified memory it turns a shortage into a machine that no longer answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host import swaps
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.sizes import size

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.swaps import Swap


class SwapFacts(Struct, frozen=True):
    areas: tuple[Swap, ...]


class SwapOff(Check[SwapFacts], frozen=True):
    """Swap is off where the engine shares its memory with a GPU."""

    uses_gpu: bool = True
    id: ClassVar[str] = "swap"
    about: ClassVar[About] = About(
        levels=(Level.WARN,),
        reads="/proc/swaps",
        source='"Two-Node DGX Spark Cluster: Running DeepSeek V4 Flash at 20 TPS", section "OOM Safety on GB10 Unified '
        'Memory": swap "causes a death spiral, not graceful degradation"',
        page="""\
What the GPU uses can't be swapped out. On a DGX Spark the engine takes nine tenths of the memory that way, and when it
grows, all that the kernel can push out is the memory of everything else: the engine's own host side, sshd, docker,
sparkd. Each of them then waits for the disk at every step. Such a machine answers pings but no ssh for many minutes,
and is power-cycled in the end. Without swap the kernel ends the process that is too large, and sparkd starts it again.

DGX OS comes with 16 GiB in /swap.img.

  ok       no swap is on, or the plan uses no GPU: then swap is slow, but it helps, as on any machine.
  warn     swap is on. Turn it off until the next boot:

             swapoff -a

           and for good: take its line out of /etc/fstab. zram counts too: it is compressed in the same memory, and a
           unit turns it on: systemctl list-units '*zram*'. swapoff reads back what is swapped out, so look at how much
           that is first; a recipe that was tuned with swap on may need its headroom there.

It never blocks, for a plan that fits works either way.""",
    )

    def probe(self, host: Host) -> SwapFacts:
        return SwapFacts(swaps.read(host.files))

    def judge(self, facts: SwapFacts) -> Verdict:
        if not facts.areas:
            return Verdict(Level.OK, "off")
        named = ", ".join(f"{one.path} {size(one.bytes)}{' in memory' * one.in_memory}" for one in facts.areas)
        reason = f"swap is on: {named}; {size(sum(one.used_bytes for one in facts.areas))} in use"
        if not self.uses_gpu:
            return Verdict(Level.OK, f"{reason}; the plan uses no GPU")
        if all(one.in_memory for one in facts.areas):
            return Verdict(Level.WARN, reason, "swapoff -a, and for good: see systemctl list-units '*zram*'")
        return Verdict(Level.WARN, reason, "swapoff -a, and for good: take its line out of /etc/fstab")
