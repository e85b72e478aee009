"""Types of setting values, each with the error text for a wrong value."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from ipaddress import IPv6Address, ip_address
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, Strict
from pydantic_core import ErrorDetails, PydanticCustomError

from sparkd.base.vllm.args import check_path, parse_flags, parse_secret_files, parse_variables


class Section(BaseModel):
    """Frozen, strict (no text for a number, no true for 1), and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class KeysFault(NamedTuple):
    """A fault between keys."""

    at: str
    """The dotted key to name."""
    value: JsonValue
    """The value of that key."""
    other: str
    """The dotted key that was set where `at` has its default; empty for none."""


def fault(at: str, value: JsonValue, needed: str, other: str = "") -> PydanticCustomError:
    """The error for a fault between keys. `needed` describes what `at` must have, for people."""
    return PydanticCustomError("between_keys", "{needed}", {"needed": needed, "at": at, "value": value, "other": other})


def read_keys_fault(error: ErrorDetails) -> KeysFault | None:
    """What `fault` was given; None for an error of a single key."""
    if error["type"] != "between_keys":
        return None
    return KeysFault(*(error["ctx"][name] for name in KeysFault._fields))


def _check_address(raw: str) -> str:
    try:
        address = ip_address(raw)
    except ValueError:
        raise ValueError("must be an IP address, such as 10.0.0.1 (names are not looked up)") from None
    # One form for each address, or two nodes could have the same.
    address = (address.ipv4_mapped if address.version == 6 else None) or address
    if address.is_unspecified or address.is_multicast:
        raise ValueError("must be the address of one node")
    if isinstance(address, IPv6Address) and address.is_link_local and not address.scope_id:
        raise ValueError("is link-local, so that nothing can listen on it: give the interface an address, in netplan")
    return str(address)


def split_address(raw: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:29511` or `[::1]:29511`. ValueError where it is neither."""
    host, _, port = raw.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        well_formed = ip_address(bare).version == (6 if bare != host else 4)
    except ValueError:
        well_formed = False
    if not well_formed or not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise ValueError("must be an IP address and a port, such as 127.0.0.1:29511 or [::1]:29511")
    return bare, int(port)


def _check_listen(raw: str) -> str:
    if raw:
        split_address(raw)
    return raw


def _check_absolute(raw: str) -> str:
    return check_path(raw, "it")


WRITABLE = ":rw"
"""Ends a path of cluster.allow.mounts that may be written to."""


def _check_mount(raw: str) -> str:
    path = check_path(raw.removesuffix(WRITABLE), "it")
    if path == "/":
        raise ValueError("must be less than all files of the node")
    return path + WRITABLE if raw.endswith(WRITABLE) else path


_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_REGISTRY = rf"(?:{_HOST}(?:\.{_HOST})*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_FOLDER = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"((?:{_REGISTRY}/)?{_FOLDER}(?:/{_FOLDER})*)(?::[A-Za-z0-9_][\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?",
    re.ASCII,
)
"""References as docker reads them (the grammar of the distribution project, with digests by SHA-256)."""


def check_image(raw: str) -> str:
    """The text itself. Raises ValueError where it is neither a reference of an image nor empty."""
    match = _IMAGE.fullmatch(raw) if len(raw) <= 512 else None
    if raw and (match is None or len(match[1]) > 255):
        raise ValueError("must be an image, such as name:tag or name@sha256:…; only a registry has capital letters")
    return raw


def _check_recipe(raw: str) -> str:
    if raw.startswith("/"):
        return _check_absolute(raw)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", raw):
        raise ValueError("must be the name of a recipe, or the absolute path of one")
    return raw


def matching(pattern: str, needed: str) -> AfterValidator:
    """Text that the whole pattern matches; `needed` describes it."""

    def check(raw: str) -> str:
        if not re.fullmatch(pattern, raw):
            raise ValueError(f"must be {needed}")
        return raw

    return AfterValidator(check)


def _check_table(check: Callable[[Mapping[str, object]], object], written_as: object) -> BeforeValidator:
    return BeforeValidator(
        lambda raw: check(raw) if isinstance(raw, Mapping) else raw, json_schema_input_type=written_as
    )


def _refuse_repeats(raw: tuple[str, ...]) -> tuple[str, ...]:
    if twice := [name for name, count in Counter(raw).items() if count > 1]:
        raise ValueError(f"names {twice[0]} twice")
    return raw


def _check_command(raw: tuple[str, ...]) -> tuple[str, ...]:
    if any(ord(letter) < 32 for word in raw for letter in word):
        raise ValueError("may hold no control character")
    return raw and (check_path(raw[0], "its first word"), *raw[1:])


Port = Annotated[int, Field(ge=1, le=65535)]
Address = Annotated[str, AfterValidator(_check_address)]
Addresses = Annotated[tuple[Address, ...], Strict(False), AfterValidator(_refuse_repeats)]
AbsolutePath = Annotated[str, AfterValidator(_check_absolute)]
Command = Annotated[tuple[str, ...], Strict(False), AfterValidator(_check_command)]
PathOrEmpty = Annotated[str, AfterValidator(lambda raw: raw and _check_absolute(raw))]
RecipeNameOrEmpty = Annotated[str, AfterValidator(lambda raw: raw and _check_recipe(raw))]
Listen = Annotated[str, AfterValidator(_check_listen)]
ImageName = Annotated[
    str,
    matching(r"[A-Za-z0-9\[][A-Za-z0-9._:/@\[\]-]*", "the beginning of an image's name, such as ghcr.io/spark-arena/"),
]
ImageNames = Annotated[tuple[ImageName, ...], Strict(False), AfterValidator(_refuse_repeats)]
AllowedMount = Annotated[str, AfterValidator(_check_mount)]
AllowedMounts = Annotated[tuple[AllowedMount, ...], Strict(False), AfterValidator(_refuse_repeats)]
InterfaceOrEmpty = Annotated[str, matching(r"[A-Za-z0-9._@-]{0,15}", "the name of a network interface")]
ImageOrEmpty = Annotated[str, AfterValidator(check_image)]
Hca = Annotated[str, matching(r"[A-Za-z0-9][A-Za-z0-9._:-]*", "the name of an RDMA device, such as rocep1s0f0")]
Hcas = Annotated[tuple[Hca, ...], Strict(False), AfterValidator(_refuse_repeats)]
CheckId = Annotated[str, matching(r"[a-z0-9][a-z0-9._-]*", "the id of a check, such as page-cache")]
CheckIds = Annotated[tuple[CheckId, ...], Strict(False), AfterValidator(_refuse_repeats)]
Flags = Annotated[Mapping[str, JsonValue], _check_table(parse_flags, dict[str, JsonValue])]
Variables = Annotated[Mapping[str, str | None], _check_table(parse_variables, dict[str, str | int | float | None])]
SecretFiles = Annotated[Mapping[str, str], _check_table(parse_secret_files, dict[str, str])]
