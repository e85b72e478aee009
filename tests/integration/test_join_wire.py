"""A join over a cable between two kernels' network namespaces, with each frame on it recorded."""

import textwrap

import pytest
from tests.integration import world
from tests.integration.test_fabric_kernel import COMMON

JOIN = """
    import re, socket, threading
    from sparkd.tools.setup.join import Guest, Invitation

    ACCEPT = '''
    import sys
    from sparkd.agent.cluster.inventory import Inventory
    from sparkd.tools.setup.join_request import confirm, fetch_keys
    from sparkd.base.config.settings import Allow
    try:
        code = sys.stdin.readline()
        print(fetch_keys(code))
        confirm(code, Inventory("n", 1, True, Allow(), (), "/m", (), ()))
    except Exception as error:
        print("refused:", error)
    '''
    REPEAT = '''
    import socket, sys
    with socket.create_connection((sys.argv[1], 29512), 10) as sock:
        sock.sendall(sys.stdin.buffer.read())
        print(sock.recv(4096).split()[1].decode())
    '''
    KEY = os.urandom(32)
    frames = []

    def record():
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as cable:
            cable.bind(("spark0", 0))
            while True:
                frames.append(cable.recv(65536))

    def there(code, given, *words):
        done = subprocess.run(["ip", "netns", "exec", "node2", sys.executable, "-c", code, *words],
                              input=given, capture_output=True, check=True)
        return done.stdout.decode()

    direct()
    threading.Thread(target=record, daemon=True).start()
    time.sleep(0.2)
    with Invitation(HEAD, (), (KEY,), 2, head_keys=(KEY,)) as invitation:
        joined = there(ACCEPT, invitation.code.encode())
        guest = next(invitation.guests())
        time.sleep(0.2)
        wire = b"".join(frames)
        request = re.search(rb"GET /join\\?key=.*?\\r\\n\\r\\n", wire, re.DOTALL)[0]
        repeated = there(REPEAT, request, HEAD).strip()
    hex_digits = b" ".join(bytes.fromhex(digits.decode()) for digits in re.findall(rb"(?:[0-9a-f]{2})+", wire))
    hidden = [KEY, KEY.hex().encode(), KEY.hex().upper().encode(), *invitation.code.encode().split(b"-")[1:]]
    leaked = [secret.hex() for secret in hidden if secret in wire or secret in hex_digits]
    public = bytes.fromhex(re.search(rb"key=([0-9a-f]+)", request)[1].decode())
    print(json.dumps([repr(KEY) in joined, guest.address, public in hex_digits, leaked, repeated]))
"""


@pytest.mark.parametrize(("head", "node"), [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")])
def test_no_frame_has_the_key_or_a_group_of_the_code_and_a_recorded_request_opens_nothing(head: str, node: str) -> None:
    code = textwrap.dedent(COMMON) + f"HEAD = {head!r}\n" + textwrap.dedent(JOIN)
    printed = world.run(code)
    assert isinstance(printed, list)
    joined, address, recorded, leaked, repeated = printed
    assert joined
    assert address == node
    assert recorded, "the search finds what is sent as hex digits"
    assert (leaked, repeated) == ([], "401")
