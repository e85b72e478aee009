"""Assertions of a recipe about its image, and the steps that make it from another one, as lines of a Dockerfile."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Discriminator, Field, Strict, Tag, model_serializer, model_validator
from pydantic_core.core_schema import SerializerFunctionWrapHandler

from sparkd.base.config import types as t
from sparkd.base.config.types import Section
from sparkd.base.vllm.args import check_text

TAGS = TEXT, MAPPING = "<text>", "<mapping>"
"""Tags of the two forms of a value in pydantic's error locations, which are not part of the written key."""
_BY_FORM = Discriminator(lambda raw: MAPPING if isinstance(raw, Mapping | Section) else TEXT)
Text = Annotated[str, AfterValidator(lambda raw: check_text(raw))]
MOST_STEPS = 64
MOST_FILES, MOST_BYTES = 1000, 64 << 20
"""Limits of what all steps copy. The largest published mod has 30 files, 2 MB; all 150 of a launcher have below 10."""
LONGEST_RUN = 16_000
LONGEST_LINE = 65_000
"""Limit for a line of a Dockerfile: dockerd takes 65,535 bytes, and JSON writes a letter in up to twelve."""
_CHECK_OUT = (
    'git init -q "$1"; cd "$1"; git fetch -q --depth 1 "$2" "$3" || { echo "sparkd: $2 does not give commit $3: where '
    'its branch was rebased the commit is gone, and the recipe needs the new one" >&2; exit 1; }; '
    "git checkout -q FETCH_HEAD; git submodule --quiet update --init --recursive --depth 1"
)
"""Bash program: $1 is the folder, $2 the repository, $3 the commit."""


def _check_program(raw: str) -> str:
    if len(check_text(raw)) > LONGEST_RUN or not raw.strip():
        raise ValueError(f"must be commands for bash, of at most {LONGEST_RUN} letters")
    return raw


FileName = Annotated[
    str,
    t.matching(
        r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}(?:/[A-Za-z0-9_][A-Za-z0-9._-]{0,99}){0,7}",
        "the path of a file or folder beside the recipe's file, without .. and hidden ones",
    ),
]
GitUrl = Annotated[
    str,
    t.matching(r"https://[A-Za-z0-9.-]{1,200}(?::\d{1,5})?(?:/[A-Za-z0-9._~-]{1,100}){1,8}", "a repository by https"),
]
Commit = Annotated[str, t.matching(r"[0-9a-f]{40}", "a whole commit, of 40 digits")]
Target = Annotated[t.AbsolutePath, t.matching(r"[^$\\]*", "a path without $ and backslash")]
Variable = Annotated[str, t.matching(r"[A-Za-z_][A-Za-z0-9_]{0,99}", "the name of a variable")]
Value = Annotated[str, t.matching(r"[ -~]{0,4000}", "plain letters on one line")]


class Lines(Section):
    """Lines of a file in the image that match a pattern: one, where nothing else is said."""

    file: t.AbsolutePath = Field(description="Path in the container.")
    pattern: Annotated[Text, t.matching(r"[^\n]+", "a pattern of grep's, on one line")] = Field(
        description="Basic regular expression, as grep has it."
    )
    times: int = Field(1, ge=0, le=10_000, description="How many lines match.")

    def __str__(self) -> str:
        return f"{self.times} line(s) of {self.file} match {self.pattern}"


Assertion = Annotated[Annotated[Text, Tag(TEXT)] | Annotated[Lines, Tag(MAPPING)], _BY_FORM]


class Step(Section):
    """One of run, copy, git and env."""

    run: Annotated[str, AfterValidator(_check_program)] | None = Field(
        None, description="Commands for bash, which ends at the first one that fails."
    )
    file: FileName | None = Field(
        None, alias="copy", description="File, or folder whose content, beside the recipe's file is copied to `to`."
    )
    git: GitUrl | None = Field(None, description="Repository that is checked out, with its submodules, in `to`.")
    commit: Commit | None = Field(None, description="The commit of `git`.")
    to: Target | None = Field(None, description="Path in the image.")
    env: Mapping[Variable, Value] | None = Field(None, description="Variables; $NAME is one that the image has.")

    @model_validator(mode="after")
    def _check_kind(self) -> Step:
        if self.model_fields_set not in ({"run"}, {"file", "to"}, {"git", "commit", "to"}, {"env"}) or self.env == {}:
            raise ValueError("must be one of: run; copy and to; git, commit and to; env")
        if len(self.instruction()) > LONGEST_LINE:
            raise ValueError(f"is too long: with escapes it may have {LONGEST_LINE} bytes; split it")
        return self

    @model_serializer(mode="wrap")
    def _drop_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        return {key: value for key, value in handler(self).items() if value is not None}

    def __str__(self) -> str:
        """The step for people; a program in full."""
        if self.git:
            return f"git {self.git} at {self.commit} to {self.to}"
        if self.env:
            return "env " + " ".join(f"{name}={value}" for name, value in self.env.items())
        return f"run {self.run}" if self.run else f"copy {self.file} to {self.to}"

    def instruction(self) -> str:
        """One line of a Dockerfile. JSON escapes line ends and a last backslash, so no step can begin a second one."""
        if self.env:
            escaped = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in self.env.items()}
            return "ENV " + " ".join(f'{name}="{value}"' for name, value in escaped.items())
        if self.file:
            return f"COPY {json.dumps([self.file, self.to])}"
        program = [self.run] if self.run else [_CHECK_OUT, "git", self.to, self.git, self.commit]
        return f"RUN {json.dumps(['/bin/bash', '-eo', 'pipefail', '-c', *program])}"


class Build(Section):
    """An image, made by this node's docker from another one."""

    base: Annotated[str, AfterValidator(t.check_image)] = Field(
        alias="from", min_length=1, description="Image that it is made from, best by its digest."
    )
    steps: Annotated[tuple[Step, ...], Strict(False)] = Field(
        min_length=1, max_length=MOST_STEPS, description="What is done to it, in order."
    )

    def dockerfile(self, base: str) -> str:
        """The whole Dockerfile. `base`: the image's id, so that a name that moves meanwhile changes nothing."""
        return "\n".join([f"FROM {base}", *(step.instruction() for step in self.steps)]) + "\n"


BuildForm = Annotated[Annotated[Text, Tag(TEXT)] | Annotated[Build, Tag(MAPPING)], _BY_FORM]
