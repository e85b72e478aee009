"""Types of values in recipes, each with the error text for a wrong value."""

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, Strict

from sparkd.base.config import types as t
from sparkd.base.recipes.image import Text
from sparkd.base.vllm.args import check_path, check_text
from sparkd.base.vllm.container_paths import check_target


def _check_model_path(raw: str) -> str:
    if raw.startswith("~"):
        raise ValueError("must be the whole path, such as /home/NAME/models: nothing expands ~")
    if raw.startswith("/"):
        path = check_path(raw, "it")
        if not path.strip("/."):
            raise ValueError("must be the model's own folder, not the node's whole file system")
        return path
    if raw:
        check_path(f"/{raw}", "it")
        if any(part in ("", ".") for part in raw.split("/")):
            raise ValueError("must be a plain path below engine.models_dir, or an absolute one")
    return raw


def _check_served_name(raw: str) -> str:
    name = check_text(raw)
    if name.startswith("-"):
        raise ValueError("must not begin with a dash: the engine would read it as a flag")
    if name and not name.strip():
        raise ValueError("must be a name, or left out for the folder's")
    return name


def _check_program(raw: tuple[str, ...]) -> tuple[str, ...]:
    if not raw or not raw[0]:
        raise ValueError("must name a program")
    return raw


def _refuse_unit(raw: object) -> object:
    if isinstance(raw, str) and (match := re.fullmatch(r"(\d{1,9})([kmgt])(?:i?b)?", raw.strip().lower())):
        raise ValueError(f"must be a number of bytes: {int(match[1]) << 10 * ('kmgt'.index(match[2]) + 1)}")
    return raw


ModelPath = Annotated[str, AfterValidator(_check_model_path)]
ServedName = Annotated[str, AfterValidator(_check_served_name)]
Alias = Annotated[str, Field(min_length=1), AfterValidator(_check_served_name)]
Target = Annotated[str, AfterValidator(check_target)]
REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
RepoName = Annotated[str, t.matching(f"({REPO.pattern})?", "ORGANISATION/NAME, as on Hugging Face")]
REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
Revision = Annotated[str, t.matching(f"({REVISION.pattern})?", "a branch, a tag or a commit")]
Program = Annotated[tuple[Text, ...], Strict(False), AfterValidator(_check_program)]
CacheName = Annotated[str, t.matching(r"[a-z0-9][a-z0-9._-]*", "a short name in small letters, such as vllm")]
Bytes = Annotated[int, Field(ge=1, le=2**50), BeforeValidator(_refuse_unit, json_schema_input_type=int)]
RecipeName = Annotated[str, t.matching(r"[a-z0-9][a-z0-9._-]*", "a name in small letters, digits, dots and dashes")]
SysctlName = Annotated[
    str,
    t.matching(
        r"(?:vm|net\.core|net\.ipv4|net\.ipv6)(?:\.(?!tcp_fastopen_key|stable_secret)[a-z0-9_-]+)+|kernel\.(?:numa_balancing|pid_max|threads-max)",
        "a setting of memory or network, such as vm.swappiness, or kernel.numa_balancing, .pid_max or .threads-max",
    ),
]
"""Recipes come from third parties. So no setting matches that runs a program (kernel.core_pattern) or is a secret."""
SysctlValue = Annotated[
    str,
    BeforeValidator(lambda raw: str(raw) if type(raw) is int else raw, json_schema_input_type=int | str),
    t.matching(r"-?\d{1,19}(?: -?\d{1,19}){0,7}", "a number, or numbers with one blank between them"),
]
