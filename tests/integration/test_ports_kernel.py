"""Listening ports on a real kernel, and the addresses of the node."""

import os
import re

from tests.integration.preflight_world import run

MANY = 900
"""Listeners whose description takes the kernel several answers: it has some 100 bytes on each, and an answer 32 KB."""


def test_a_port_of_another_process_is_named_with_its_holder_and_one_of_the_nodes_owner_is_good() -> None:
    printed = run("""
        import socket
        from sparkd.agent.actions.owner_lock import acquire_lock
        from sparkd.base.host.owner import NodeOwner
        from sparkd.agent.preflight.checks.ports import Ports, WantedPort

        v4 = socket.create_server(("127.0.0.1", 29511))
        v6 = socket.create_server(("::", 29510), family=socket.AF_INET6, dualstack_ipv6=True)
        report = WantedPort(29510, "127.0.0.1", "the node's report", "cluster.report_port", is_agent_port=True)
        observers = WantedPort(29511, "127.0.0.1", "the observers", "observe.listen", is_agent_port=True, vital=False)
        api_elsewhere = WantedPort(29511, "127.0.0.2", "the API", "args.port")
        verdicts = {
            "report": describe(Ports((report,))),
            "observers": describe(Ports((observers,))),
            "api_elsewhere": describe(Ports((api_elsewhere,))),
        }
        lock = acquire_lock(Host(), NodeOwner(os.getpid(), "a test", "0" * 32))
        print(json.dumps({**verdicts, "of_the_owner": describe(Ports((report, observers)))}))
    """)
    assert isinstance(printed, dict)
    assert {name: verdict["level"] for name, verdict in printed.items()} == {
        "report": "block",
        "observers": "warn",
        "api_elsewhere": "ok",
        "of_the_owner": "ok",
    }
    assert "is held on :: by pid 1 (python" in printed["report"]["reason"]
    assert "the observers, port 29511: the agent's own, pid 1" in printed["of_the_owner"]["reason"]


def test_a_port_that_is_only_bound_or_that_a_connection_has_is_named_with_its_holder() -> None:
    """vLLM binds its port minutes before it listens. Linux lists what is only bound since 6.8."""
    printed = run("""
        import socket
        from sparkd.agent.preflight.port_uses import find_holder

        bound, connected, server = socket.socket(), socket.socket(), socket.create_server(("127.0.0.1", 9000))
        bound.bind(("127.0.0.1", 8000))
        connected.bind(("127.0.0.1", 8001))
        connected.connect(server.getsockname())
        print(json.dumps([find_holder(Host(), (port,), 1 << 30) for port in (8000, 8001, 8002)]))
    """)
    assert isinstance(printed, list)
    kernel = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    holders = [text.partition(" (")[0] for text in printed]
    bound = "port 8000 is held by pid 1" if kernel >= (6, 8) else ""
    assert holders == [bound, "port 8001 is held by pid 1", ""]


def test_listeners_and_their_holders_of_both_families() -> None:
    printed = run("""
        import socket

        four = socket.create_server(("127.0.0.1", 8000))
        six = socket.create_server(("::", 8001), family=socket.AF_INET6)
        host = Host()
        holders = host.port_holders(host.processes(), host.listeners())
        print(json.dumps({f"{holder.listener.address} {holder.listener.port}": holder.pid for holder in holders}))
    """)
    assert printed == {"127.0.0.1 8000": 1, ":: 8001": 1}


def test_a_socket_for_ipv6_alone_keeps_its_port_from_nobody_of_ipv4() -> None:
    """Each port is tried as well: what the check says is what bind(2) does."""
    printed = run(f"""
        import socket
        from sparkd.agent.preflight.checks.ports import Ports, WantedPort

        def serve(port, only_ipv6):
            six = socket.socket(socket.AF_INET6)
            six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_ipv6)
            six.bind(("::", port))
            six.listen()
            return six

        def is_taken(family, address, port):
            with socket.socket(family) as sock:
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                try:
                    sock.bind((address, port))
                except OSError:
                    return True
            return False

        both, only_ipv6 = serve(8000, 0), serve(8001, 1)
        many = [serve(9000 + number, number % 2) for number in range({MANY})]
        host = Host()
        answers = {{}}
        for port in (8000, 8001):
            for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "")):
                verdict = describe(Ports((WantedPort(port, address, "the API", "args.port"),)))
                answers[f"{{port}} on {{address or '::'}}"] = {{
                    "blocks": verdict["level"] == "block", "is_taken": is_taken(family, address, port)
                }}
        only_ipv6_count = sum(listener.only_ipv6 for listener in host.listeners())
        print(json.dumps({{"answers": answers, "only_ipv6_count": only_ipv6_count}}))
    """)
    taken, free = {"blocks": True, "is_taken": True}, {"blocks": False, "is_taken": False}
    assert printed == {
        "answers": {
            "8000 on 127.0.0.1": taken,
            "8000 on 0.0.0.0": taken,
            "8000 on ::": taken,
            "8001 on 127.0.0.1": free,
            "8001 on 0.0.0.0": free,
            "8001 on ::": taken,
        },
        "only_ipv6_count": 1 + MANY // 2,  # port 8001, and each second of the many
    }


def test_own_addresses_are_those_of_the_interfaces() -> None:
    printed = run("""
        subprocess.run(["ip", "link", "add", "spark0", "type", "veth", "peer", "name", "spark1"], check=True)
        subprocess.run(["ip", "address", "add", "10.0.0.1/24", "dev", "spark0"], check=True)
        subprocess.run(["ip", "link", "set", "spark0", "up"], check=True)
        print(json.dumps(sorted(address for address in Host().addresses() if not address.startswith("fe80"))))
    """)
    assert printed == ["10.0.0.1", "127.0.0.1", "::1"]
