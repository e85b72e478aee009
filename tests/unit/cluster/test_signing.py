"""Signatures of requests and answers between nodes."""

import hashlib
import hmac

import pytest

from sparkd.base.cluster.auth import new_nonce, sign_answer, sign_request, signatures_match

KEY, OTHER = b"k" * 32, b"o" * 32
REQUEST = (KEY, "challenge", "nonce", "10.0.0.2", "/report?known=x")
ANSWER = (KEY, "nonce", "10.0.0.2", "/report", 200, b"body")


def test_a_request_is_signed_by_hmac_sha256_over_parts_with_their_lengths_before_them() -> None:
    parts = (b"sparkd request 2", b"challenge", b"nonce", b"10.0.0.2", b"/report?known=x")
    text = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    assert sign_request(*REQUEST) == hmac.new(KEY, text, hashlib.sha256).hexdigest()


@pytest.mark.parametrize("place", range(5))
def test_every_part_of_a_request_counts(place: int) -> None:
    changed = list(REQUEST)
    changed[place] = OTHER if place == 0 else "another"
    assert sign_request(*changed) != sign_request(*REQUEST)  # type: ignore[arg-type]  # a part of another text


@pytest.mark.parametrize(("place", "value"), [*enumerate((OTHER, "another", "10.0.0.3", "/plan", 404, b"Body"))])
def test_every_part_of_an_answer_counts(place: int, value: object) -> None:
    changed = [*ANSWER[:place], value, *ANSWER[place + 1 :]]
    assert sign_answer(*changed) != sign_answer(*ANSWER)  # type: ignore[arg-type]  # one part of another value


def test_no_byte_can_move_from_one_part_to_the_next() -> None:
    assert sign_request(KEY, "", "ab", "c", "/") != sign_request(KEY, "a", "b", "c", "/")
    assert sign_answer(KEY, "n", "a", "/", 200, b"1") != sign_answer(KEY, "n", "a", "/", 2001, b"")


def test_a_signature_of_a_request_is_none_of_an_answer() -> None:
    assert sign_answer(KEY, "n", "a", "/", 200, b"") != sign_request(KEY, "", "n", "a", "/")


def test_only_the_exact_signature_matches() -> None:
    signature = sign_request(*REQUEST)
    assert signatures_match(signature, signature)
    for wrong in ("", signature[:-1], signature.upper(), "é" * 64, "\udcff", "\0"):
        assert not signatures_match(signature, wrong)


def test_nonces_are_32_hex_digits_and_never_the_same() -> None:
    nonces = {new_nonce() for _ in range(100)}
    assert len(nonces) == 100
    assert all(len(bytes.fromhex(nonce)) == 16 for nonce in nonces)
