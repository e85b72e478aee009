"""Machines of QEMU: slow, but with a kernel, memory and links of their own, which nodes in containers lack."""
