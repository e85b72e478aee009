"""`sparkd fabric test` with the real iperf3: two nodes are network namespaces, the cable is a pair of veth."""

import textwrap

from tests.integration import world

COMMON = """
    import json, os, signal, socket, subprocess, sys, threading, time
    from pathlib import Path

    MAIN = "from sparkd.tools.cli.main import main; raise SystemExit(main())"
    COMMAND = [sys.executable, "-B", "-c", MAIN, "fabric", "test"]
    OWN_RUN = 'mkdir -p /run/sparkd && mount -t tmpfs run /run/sparkd && exec "$@"'
    THERE = ["ip", "netns", "exec", "node2"]
    WORKER = [*THERE, "unshare", "--mount", "sh", "-c", OWN_RUN, "sh", *COMMAND, "--json"]

    def shell(text):
        subprocess.run(text, shell=True, check=True)

    def nodes(rate):
        shell('''
            set -e
            mkdir -p /run/etc/sparkd /run/state
            for file in passwd group nsswitch.conf hosts ld.so.cache; do cp -L /etc/$file /run/etc; done
            mount --bind /run/etc /etc
            mount --bind /run/state /var/lib
            mount -t sysfs sysfs /sys
            ip netns add node2
            ip -n node2 link set lo up
            ip link add spark0 mtu 9000 type veth peer name spark1 mtu 9000 netns node2
            ip link set spark0 up
            ip -n node2 link set spark1 up
            ip address add 10.0.0.1/24 dev spark0
            ip -n node2 address add 10.0.0.2/24 dev spark1
        ''')
        for tc, port in (("tc", "spark0"), ("tc -n node2", "spark1")):
            shell(f"{tc} qdisc add dev {port} root tbf rate {rate} burst 512k latency 20ms")
        Path("/etc/sparkd/sparkd.toml").write_text('cluster.nodes = ["10.0.0.1", "10.0.0.2"]')
        os.umask(0o077)
        Path("/etc/sparkd/cluster.key").write_text("ab" * 32)
        os.umask(0o022)

    def start(command, **options):
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

    def listeners(port):
        words = [*THERE, "ss", "-Hltn", f"sport = :{port}"]
        return subprocess.run(words, capture_output=True, text=True).stdout.split()[3:4]

    def running(name):
        # Without those that this process, the parent of orphans, has not reaped.
        stats = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                stats.append(Path(f"/proc/{pid}/stat").read_text().split())
            except OSError:  # it has just ended
                pass
        return [int(words[0]) for words in stats if words[1] == f"({name})" and words[2] != "Z"]

    def users(name):
        uids = set()
        for pid in running(name):
            try:
                uids.add(os.stat(f"/proc/{pid}").st_uid)
            except OSError:
                pass
        return uids
"""


def run(code: str) -> object:
    return world.run(textwrap.dedent(COMMON) + textwrap.dedent(code))


def test_a_limited_cable_is_measured_both_ways_and_both_nodes_print_the_same() -> None:
    printed = run("""
        nodes("200mbit")
        worker, head, uids, listened = start(WORKER), start([*COMMAND, "--json"]), set(), set()
        while head.poll() is None:
            listened.update(listeners(29513))
            uids.update(users("iperf3"))
            time.sleep(0.05)
        theirs, errors = worker.communicate(timeout=20)
        print(json.dumps([json.loads(head.stdout.read()), json.loads(theirs), head.returncode, worker.returncode,
                          sorted(uids), sorted(listened), running("iperf3")]))
    """)
    assert isinstance(printed, list)
    own, theirs, *codes, users, listened, left = printed
    assert own == theirs
    assert codes == [10, 10], "a veth says 10 Gb/s"
    measured = own["pairs"][0]["measured"]
    for key in ("sent_gbps", "received_gbps"):
        assert 0.18 < measured[key] < 0.21, measured
    assert 1 < measured["round_trip_us"] <= measured["round_trip_99_us"] < 100_000
    assert own["ceiling_gbps"] > measured["sent_gbps"]
    assert (users, listened, left) == ([65534], ["10.0.0.2:29513"], [])


def test_nothing_is_started_for_strangers_and_ctrl_c_leaves_nothing() -> None:
    printed = run("""
        nodes("200mbit")
        from tests.unit.wire import message
        worker = start(WORKER)
        while not listeners(29510):
            time.sleep(0.05)
        answers = []
        for path in ("ports", "tcp", "rdma", "result?e30="):
            with socket.create_connection(("10.0.0.2", 29510), 5) as sock:
                sock.sendall(f"GET /fabric/{path} HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n".encode())
                answers.append(message(sock)[9:12].decode())
        started = listeners(29513)
        head = start(COMMAND)
        while len(running("iperf3")) < 2 or not listeners(29513):
            time.sleep(0.02)
        head.send_signal(signal.SIGINT)
        head.wait(20)
        worker.send_signal(signal.SIGINT)
        worker.wait(20)
        time.sleep(0.2)
        print(json.dumps([answers, started, running("iperf3")]))
    """)
    assert printed == [["401"] * 4, [], []]


def test_a_stranger_that_takes_the_place_of_the_other_node_is_named_and_gone_at_the_end() -> None:
    printed = run("""
        nodes("200mbit")
        from sparkd.tools.measure import traffic_programs as programs
        process = programs.listen(programs.tcp_command("127.0.0.1"), 5.0)
        while True:
            try:
                stranger = socket.create_connection(("127.0.0.1", 29513))
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        stranger.send(b"x" * 37)
        try:
            programs.measure_tcp("127.0.0.1", "127.0.0.1")
        except programs.TrafficError as error:
            reason = str(error)
        process.wait(20)
        time.sleep(0.2)
        print(json.dumps([reason, running("iperf3")]))
    """)
    assert isinstance(printed, list)
    reason, left = printed
    assert reason.startswith("iperf3: "), reason
    assert left == []


def test_without_iperf3_the_command_to_install_it_is_named() -> None:
    printed = run("""
        nodes("200mbit")
        done = subprocess.run(COMMAND, env={**os.environ, "PATH": "/nowhere"}, capture_output=True, text=True)
        print(json.dumps([done.returncode, done.stderr]))
    """)
    assert printed == [
        10,
        "sparkd: iperf3 is not on this node: all nodes need it, to measure TCP\nhint: sudo apt install iperf3\n",
    ]
