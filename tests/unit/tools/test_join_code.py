"""Join codes: how they are written and read, and the seals that they make."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.base.host.network import canonical
from sparkd.base.lib.errors import UsageError
from sparkd.tools.setup.join_code import Ephemeral, JoinCode, Seal

HEAD, NODE = "10.0.0.1", "10.0.0.2"
SECRETS = st.integers(min_value=0, max_value=(1 << 90) - 1)
HEADS = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str).map(canonical)
LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class Note(msgspec.Struct, frozen=True):
    text: str


@given(HEADS, SECRETS)
def test_a_code_is_read_back_as_it_was_written(head: str, secret: int) -> None:
    assert JoinCode.parse(str(JoinCode(head, secret))) == JoinCode(head, secret)


def test_a_code_is_an_address_and_four_groups_of_five_letters() -> None:
    head, *groups = str(JoinCode.new(HEAD)).split("-")
    assert head == HEAD
    assert [len(group) for group in groups] == [5] * 4


def test_secrets_are_never_the_same_and_use_all_90_bits() -> None:
    secrets = [JoinCode.new(HEAD).secret for _ in range(200)]
    assert len(set(secrets)) == 200
    assert all(any(secret >> bit & 1 for secret in secrets) for bit in range(90))


@given(SECRETS, st.booleans())
def test_a_code_may_be_typed_in_small_letters_with_blanks_and_letters_that_look_alike(secret: int, small: bool) -> None:
    head, _, letters = str(JoinCode(HEAD, secret)).partition("-")
    typed = letters.replace("-", " ").replace("0", "O").replace("1", "l")
    assert JoinCode.parse(f" {head}-{typed.lower() if small else typed}\n") == JoinCode(HEAD, secret)


@given(SECRETS, st.data())
def test_each_wrong_letter_and_each_swap_of_neighbours_is_known_as_a_typo(secret: int, data: st.DataObject) -> None:
    letters = str(JoinCode(HEAD, secret)).removeprefix(f"{HEAD}-").replace("-", "")
    place = data.draw(st.sampled_from(range(len(letters))))
    other = data.draw(st.sampled_from([letter for letter in LETTERS if letter != letters[place]]))
    typos = [letters[:place] + other + letters[place + 1 :]]
    neighbours = letters[place : place + 2]
    if len(set(neighbours)) == 2:
        typos.append(letters[:place] + neighbours[::-1] + letters[place + 2 :])
    for typo in typos:
        with pytest.raises(UsageError, match="typo"):
            JoinCode.parse(f"{HEAD}-{typo}")


@given(SECRETS, st.sampled_from(["10.0.0.2", "10.0.1.1", "11.0.0.1", "10.0.0.11", "10.0.0.101"]))
def test_a_wrong_address_is_known_as_a_typo(secret: int, head: str) -> None:
    with pytest.raises(UsageError, match="typo"):
        JoinCode.parse(str(JoinCode(HEAD, secret)).replace(HEAD, head))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "10.9.8.7",
        "10.9.8.7-",
        "spark1-7K3QM-7K3QM-7K3QM-7K3QM",
        "10.9.8.7-7K3QM-7K3QM-7K3QM",
        "10.9.8.7-7K3QM-7K3QM-7K3QM-7K3QM-7",
        "10.9.8.7-7K3QM-7K3QM-7K3QM-7K3Q\u00e9",
        "10.9.8.7-UUUUU-UUUUU-UUUUU-UUUUU",
        "10.9.8.7-" + "0" * 100_000,
        "10.9.8.7-\0\0\0",
        "\ud800",
    ],
)
def test_a_text_that_is_no_code_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(UsageError, match="no join code") as raised:
        JoinCode.parse(text)
    assert len(text) < 2 or text not in str(raised.value)


def make_seals(code: JoinCode, theirs: JoinCode, node: str = NODE, challenge: str = "c") -> tuple[Seal, Seal]:
    """The seal of the node's messages, as the node has it and as the head has it."""
    head_key, node_key = Ephemeral(), Ephemeral()
    (node_seal, _) = node_key.seals(head_key.public, code, NODE, "c", head=False)
    (head_seal, _) = head_key.seals(node_key.public, theirs, node, challenge, head=True)
    return node_seal, head_seal


CODE = JoinCode.new(HEAD)


def test_both_sides_of_a_code_read_each_other() -> None:
    node_seal, head_seal = make_seals(CODE, CODE)
    assert head_seal.open(node_seal.close(Note("hello")), Note) == Note("hello")


@pytest.mark.parametrize(
    ("theirs", "node", "challenge"),
    [
        (CODE._replace(secret=CODE.secret ^ 1), NODE, "c"),
        (CODE._replace(head="10.0.0.3"), NODE, "c"),
        (CODE, "10.0.0.3", "c"),
        (CODE, NODE, "another"),
    ],
    ids=["secret", "head", "node", "challenge"],
)
def test_every_part_that_the_keys_are_bound_to_counts(theirs: JoinCode, node: str, challenge: str) -> None:
    node_seal, head_seal = make_seals(CODE, theirs, node, challenge)
    with pytest.raises(ValueError, match="without the code"):
        head_seal.open(node_seal.close(Note("hello")), Note)


def test_another_exchange_of_the_same_code_opens_nothing() -> None:
    (node_seal, _), (_, head_seal) = make_seals(CODE, CODE), make_seals(CODE, CODE)
    with pytest.raises(ValueError, match="without the code"):
        head_seal.open(node_seal.close(Note("hello")), Note)


def test_the_two_directions_have_keys_of_their_own() -> None:
    head_key, node_key = Ephemeral(), Ephemeral()
    from_node, to_node = head_key.seals(node_key.public, CODE, NODE, "c", head=True)
    with pytest.raises(ValueError, match="without the code"):
        to_node.open(from_node.close(Note("hello")), Note)


def test_the_same_message_is_sealed_otherwise_each_time() -> None:
    node_seal, _ = make_seals(CODE, CODE)
    assert len({node_seal.close(Note("hello")) for _ in range(50)}) == 50


@pytest.mark.parametrize("theirs", [b"", b"x" * 31, b"\0" * 32, b"\1" + b"\0" * 31], ids=["none", "short", "0", "1"])
def test_a_public_key_that_is_none_or_makes_a_known_secret_is_refused(theirs: bytes) -> None:
    with pytest.raises(ValueError):
        Ephemeral().seals(theirs, CODE, NODE, "c", head=True)


@given(st.binary(max_size=80))
def test_garbage_is_a_value_error(garbage: bytes) -> None:
    with pytest.raises(ValueError):
        make_seals(CODE, CODE)[0].open(garbage, Note)
