"""What one package serves: every supported CPython, on one architecture."""

from __future__ import annotations

from msgspec import Struct

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Debian 12 has the first, Ubuntu 24.04 the second, Debian 13 the third."""


class Architecture(Struct, frozen=True):
    debian: str
    machine: str

    @property
    def platforms(self) -> tuple[str, ...]:
        """Wheels for glibc 2.17 or earlier run on every system that the package is for."""
        libcs = ("_2_17", "2014", "_2_12", "2010", "_2_5", "1")
        return tuple(f"manylinux{libc}_{self.machine}" for libc in libcs)

    def environments(self) -> tuple[dict[str, str], ...]:
        """What the markers of requirements are judged against, beside what is the same where a package is built."""
        return tuple(
            {
                "implementation_version": f"{python}.0",
                "platform_machine": self.machine,
                "python_full_version": f"{python}.0",
                "python_version": python,
            }
            for python in PYTHONS
        )


ARCHITECTURES = (Architecture("amd64", "x86_64"), Architecture("arm64", "aarch64"))
