"""Processes by what they have open: the sockets of ports, and the devices of the GPU."""

from tests.tree import Tree

from sparkd.base.host import Host
from sparkd.base.host.sockets import Holder


def test_the_holders_of_a_port_have_its_socket_open(tree: Tree) -> None:
    tree.listening((29501, 77))
    tree.process(10, "VLLM::Worker_TP", opened=("/dev/null", "socket:[77]"))
    tree.process(11, "VLLM::Worker_TP", opened=("socket:[77]", "socket:[77]"))
    tree.process(12, "other", opened=("socket:[770]", "/tmp/socket:[77]x"))
    host = Host(tree.root)
    listeners = host.listeners()
    assert host.port_holders(host.processes(), listeners) == (Holder(listeners[0], 10), Holder(listeners[0], 11))


def test_users_of_the_gpu_have_its_devices_open(tree: Tree) -> None:
    tree.file("/dev/nvidia0")
    tree.process(10, "VLLM::Worker_TP", opened=("/dev/nvidia0", "/dev/nvidia-uvm", "/dev/null"))
    tree.process(11, "other", opened=("/dev/nvidia-fs0", "/home/x/dev/nvidia0"))
    host = Host(tree.root)
    assert host.gpu_present()
    assert {(file.pid, file.target) for file in host.gpu_users(host.processes()).found} == {
        (10, "/dev/nvidia0"),
        (10, "/dev/nvidia-uvm"),
    }


def test_a_driver_without_a_gpu_is_no_gpu(tree: Tree) -> None:
    tree.file("/dev/nvidiactl")
    assert not Host(tree.root).gpu_present()
