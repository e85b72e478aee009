"""Nodes made of files: one on which an engine may start, and one with faults that fixes clear."""

from tests.tree import Tree


def healthy(tree: Tree) -> Tree:
    """A node on which `tiny-cpu` may start."""
    tree.file("/etc/sparkd/sparkd.toml", '[engine]\nrecipe = "tiny-cpu"\nargs.host = "127.0.0.1"\n')
    tree.file("/usr/lib/systemd/system/sparkd-head.service", "[Service]\nExecStart=/usr/bin/sparkd run --role head\n")
    tree.file("/usr/bin/sparkd", "#!/usr/bin/python3\n", mode=0o755)
    tree.file("/srv/models/tiny/config.json", "{}")
    tree.file("/srv/models/tiny/tokenizer.json", "{}")
    tree.safetensors("/srv/models/tiny/model.safetensors")
    tree.file("/proc/sys/kernel/hostname", "spark1\n")
    tree.file("/proc/sys/kernel/osrelease", "6.17.0-1032-nvidia\n")
    tree.file("/proc/uptime", "10000.00 1.00\n")
    tree.process(1, "systemd", parent=0)
    tree.listening()
    tree.meminfo(MemTotal=120, MemFree=100, MemAvailable=110)
    tree.dockerd()
    tree.docker("/version", {"Version": "29.2.1", "Arch": "arm64"})
    tree.docker("/info", {"Runtimes": {"runc": {}}})
    tree.docker("/containers/json", [])
    image = {"Id": f"sha256:{'1' * 64}", "Architecture": "arm64", "Os": "linux", "Config": {}, "RootFS": {"Layers": []}}
    tree.docker("/images/sparkd-test/vllm-cpu:0.32.0/json", image)
    return tree


def faulty(tree: Tree) -> Tree:
    """Orphans, what they left, page cache, and a hook."""
    healthy(tree)
    tree.process(10, "VLLM::Worker_TP", group=9, opened=("socket:[5]",))
    tree.listening((8000, 5))
    tree.segment("psm_0123abcd")
    tree.meminfo(MemTotal=120, MemFree=2, MemAvailable=110, Cached=100)
    tree.file("/etc/sparkd/preflight.d/10-site", "#!/bin/sh\ntouch /tmp/never\n", mode=0o755)
    return tree
