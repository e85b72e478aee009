"""The table of rules: predicate, severity and hint; and the predicates on the table of flags.

An image may contain a fork with more flags and choices, so only values that no build of vLLM can read, and names one
typing error away from a flag, are certain to fail.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from operator import methodcaller

from msgspec import Struct

from sparkd.base.lib.text import did_you_mean
from sparkd.base.vllm.flag import Flag, FlagTable, ParsedFlag, misprint_of
from sparkd.base.vllm.lint import environment, predicates, values
from sparkd.base.vllm.lint.predicates import JSON_FLAGS, JSON_OR_TEXT, NOTHING, RENAMED, Launch, Matches, about
from sparkd.base.vllm.releases import add_history, load_releases

MOST_FLAGS = 400
"""Flags of a command that are judged. An unknown name takes 5 ms. vLLM has 316 flags."""


class Rule(Struct, frozen=True):
    """A rule. docs/sparkd-checks.7.md, under plan-lint, says what each one matches, and by which source."""

    name: str
    blocks: bool
    """Whether the engine would fail or freeze the machine; otherwise it only serves worse than possible."""
    matches: Callable[[Launch], Matches]
    hint: str


class Issue(Struct, frozen=True):
    rule: str
    blocks: bool
    at: str
    """Key of a recipe, such as `args.max-model-len`."""
    reason: str
    hint: str


def find_issues(launch: Launch) -> tuple[Issue, ...]:
    certain = BY_TABLE if launch.vllm.image else ()
    return tuple(
        Issue(rule.name, rule.blocks or rule.name in certain, at, reason, rule.hint)
        for rule in RULES
        for at, reason in rule.matches(launch)
    )


def is_doubtful(launch: Launch) -> bool:
    """Whether the image's own vLLM may judge the flags otherwise than the table that comes with sparkd."""
    return not launch.vllm.image and any(issue.rule in DOUBTFUL for issue in find_issues(launch))


def wrong_value(launch: Launch) -> Matches:
    return _match_known(launch, _explain_unreadable)


def not_a_choice(launch: Launch) -> Matches:
    yield from _match_known(launch, _explain_unlisted)
    # The flag's parser takes any text; the class behind it knows the names.
    flag, value = "attention-backend", launch.flags.get("attention-backend") or "auto"
    known = launch.vllm.fields_by_name.get("attention-config", {}).get("backend")
    wrong = known.wrong_value(value.upper()) if known and value.lower() not in ("auto", "none") else ""
    if wrong and flag not in launch.extra:
        yield about(flag, wrong)


def _match_known(launch: Launch, explain: Callable[[ParsedFlag, Flag], str]) -> Matches:
    for argument, head in _list_judged(launch):
        if (flag := launch.vllm.by_name.get(head)) and (reason := explain(argument, flag)):
            yield about(argument.name, reason)


def likely_typo(launch: Launch) -> Matches:
    for argument, head in _list_judged(launch):
        if correct_name := _find_typo(head, launch.vllm):
            yield about(argument.name, f"is no flag of {launch.vllm.vllm}: --{correct_name} is")


def unknown(launch: Launch) -> Matches:
    for argument, head in _list_judged(launch):
        if head in launch.vllm.by_name or _find_typo(head, launch.vllm):
            continue
        full_name = _complete_name(head, launch.vllm)
        flag = launch.vllm.by_name.get(full_name)
        if flag is None:
            reason = f"is no flag of {launch.vllm.vllm}{did_you_mean(head, launch.vllm.by_name)}"
            yield about(argument.name, add_history(reason, methodcaller("has", head)))
        elif reason := _explain_unreadable(argument, flag) or _explain_unlisted(argument, flag):
            yield about(argument.name, f"is read as --{full_name}, and {reason}")


def _list_judged(launch: Launch) -> Iterator[tuple[ParsedFlag, str]]:
    """Each flag with its name before a dot, except flags covered by the recipe or another rule."""
    for argument in launch.given[:MOST_FLAGS]:
        head = argument.name.partition(".")[0]
        is_renamed = head in RENAMED and head not in launch.vllm.by_name
        if not is_renamed and not {head, head.removeprefix("no-")} & set(launch.extra):
            yield argument, head


def _complete_name(name: str, table: FlagTable) -> str:
    """The flag for which vLLM takes an abbreviation: the only one with this prefix; else empty."""
    candidates = [flag for flag in table.by_name if flag.startswith(name)]
    return candidates[0] if len(candidates) == 1 else ""


def _explain_unreadable(argument: ParsedFlag, flag: Flag) -> str:
    """Why vLLM can't read the flag, apart from its choices."""
    return _explain_arity(argument, flag) or next(
        filter(None, (_explain_type(flag, text) for text in _list_texts(argument))), ""
    )


def _explain_unlisted(argument: ParsedFlag, flag: Flag) -> str:
    """Why a readable value is not a choice of the flag, and in which releases it is; else empty."""
    if "." in argument.name or _explain_unreadable(argument, flag):
        return ""
    text, reason = next(((text, why) for text in _list_texts(argument) if (why := flag.not_a_choice(text))), ("", ""))
    return reason and add_history(reason, lambda table: _is_listed(table.by_name.get(flag.name), text))


def _is_listed(flag: Flag | None, text: str) -> bool:
    return flag is not None and bool(flag.choices) and not flag.not_a_choice(text)


def _explain_arity(argument: ParsedFlag, flag: Flag) -> str:
    count = len(argument.values)
    if "." not in argument.name:
        return flag.wrong_arity(count, argument.joined)
    # vLLM takes exactly the next word.
    return "" if count == 1 else f"takes one value, and {count or 'none'} is given"


def _list_texts(argument: ParsedFlag) -> Iterator[str]:
    """The values as the flag gets them: a dotted field becomes an object."""
    for value in argument.values:
        if value is not None:
            yield json.dumps({"field": value}) if "." in argument.name else value


def _explain_type(flag: Flag, text: str) -> str:
    by_json_rule = flag.name in (*JSON_FLAGS, *JSON_OR_TEXT) and text not in NOTHING  # that rule reports the position
    return "" if by_json_rule else flag.wrong_type(text)


def _find_typo(name: str, table: FlagTable) -> str:
    """The flag whose name differs by one letter: wrong, missing, extra, or swapped with its neighbour.

    Empty where there is none, and where some release has the name.
    """
    correct_name = "" if name in table.by_name or _complete_name(name, table) else misprint_of(name, table.by_name)
    return "" if correct_name and any(release.has(name) for release in load_releases()) else correct_name


BLOCKS, WARNS = True, False
BY_TABLE = ("misnamed-flag", "flag-unknown", "flag-choice", "json-unknown")
"""Rules that only warn by the table that comes with sparkd, and are certain by the table of the image itself."""
DOUBTFUL = (*BY_TABLE, "variable-misprint", "variable-removed")
"""Rules whose issues the table of the image itself may not confirm."""
RULES = (
    Rule("fork", WARNS, predicates.forks,
         hint="take VLLM_WORKER_MULTIPROC_METHOD out, unless the source of the recipe needs it"),
    Rule("json", BLOCKS, predicates.broken_json,
         hint="write it as a mapping in the recipe: sparkd makes the JSON"),
    Rule("flag-value", BLOCKS, wrong_value,
         hint="correct it; where a fork's flag takes it, name the flag under flags.extra of the recipe"),
    Rule("flag-misprint", BLOCKS, likely_typo,
         hint="correct it; where a fork has this flag, name it under flags.extra of the recipe"),
    Rule("json-field", BLOCKS, partial(values.wrong_fields, sure=True),
         hint="correct it; where a fork's flag takes it, name the flag under flags.extra of the recipe"),
    Rule("json-unknown", WARNS, partial(values.wrong_fields, sure=False),
         hint="correct it, or name the flag under flags.extra where a fork has it: vLLM ends with status 2 or 1"),
    Rule("tool-choice", BLOCKS, values.incomplete,
         hint="give the other flag too, or take this one out"),
    Rule("parser-unused", WARNS, values.unused,
         hint="add enable-auto-tool-choice: true, or take the parser out"),
    Rule("not-registered", WARNS, values.unregistered,
         hint="correct it, or name the flag under flags.extra where a fork has it: vLLM ends with status 1"),
    Rule("unfilled", WARNS, values.unfilled,
         hint="write the value, or a placeholder of sparkd's: `sparkd recipe schema` names the format"),
    Rule("connector-memory", BLOCKS, values.moves_memory,
         hint=f"leave {values.ALLOCATOR} out, or set it to null; or add enable-cumem-allocator: true"),
    Rule("out-of-range", BLOCKS, values.out_of_range,
         hint="correct it, or name the draft's model in speculative-config"),
    Rule("model-length", BLOCKS, partial(predicates.longer_than_model, by_will=False),
         hint="lower max-model-len"),
    Rule("model-heads", BLOCKS, predicates.uneven_heads,
         hint="set tensor-parallel-size to one of them, or divide by pipeline-parallel-size"),
    Rule("model-kv-heads", WARNS, predicates.uneven_kv_heads,
         hint="set tensor-parallel-size to one of them, or divide by pipeline-parallel-size"),
    Rule("model-quantization", BLOCKS, predicates.other_quantization,
         hint="take quantization out: vLLM reads it from the model; or name the model that has it"),
    Rule("pool-length", WARNS, predicates.longer_than_pool,
         hint="lower max-model-len, or correct expect.kv_cache_tokens"),
    Rule("unchunked-prefill", BLOCKS, predicates.unchunked,
         hint="take enable-chunked-prefill: false out"),
    Rule("batch", BLOCKS, predicates.batch_below_sequences,
         hint="raise max-num-batched-tokens"),
    Rule("high-memory-share", WARNS, predicates.much_memory,
         hint="set gpu-memory-utilization to 0.90 or lower"),
    Rule("misnamed-flag", WARNS, predicates.misnamed,
         hint="take it out, or use the right name: vLLM ends with status 2"),
    Rule("flag-unknown", WARNS, unknown,
         hint="correct it, or name it under flags.extra where a fork has it: vLLM ends with status 2"),
    Rule("flag-choice", WARNS, not_a_choice,
         hint="correct it, or name the flag under flags.extra where a fork has it: vLLM ends with status 2"),
    Rule("long-by-will", WARNS, partial(predicates.longer_than_model, by_will=True),
         hint="lower max-model-len: positions beyond the model's own may give NaN"),
    Rule("pool-sequences", WARNS, predicates.many_pools,
         hint="lower max-num-seqs or max-model-len, or know that sequences are mostly short"),
    Rule("eager", WARNS, predicates.eager_with_graphs,
         hint="take enforce-eager out, or set cudagraph_mode: NONE"),
    Rule("drafts", WARNS, predicates.many_drafts,
         hint="lower num_speculative_tokens"),
    Rule("size", BLOCKS, values.impossible_size,
         hint="write 6G for 6 GB, or leave it out: gpu-memory-utilization sets it"),
    Rule("recipe-size", WARNS, values.impossible_size_in_recipe,
         hint="write bytes, such as 6442450944 for 6 GiB, or leave it out"),
    Rule("pointless", WARNS, values.no_effect,
         hint="correct it, or take it out"),
    Rule("variable-misprint", WARNS, environment.misprinted,
         hint="correct the name: a variable that nobody reads does nothing"),
    Rule("variable-removed", WARNS, environment.removed,
         hint="take it out, and set what has its place"),
    Rule("variable-value", WARNS, environment.wrong_value,
         hint="correct it, or take it out: sparkd sets devices and addresses on each node"),
    Rule("one-address", WARNS, environment.foreign_address,
         hint="take it out: sparkd sets each node's addresses"),
    Rule("image-machine", WARNS, values.for_x86,
         hint="name an image for arm64"),
)  # fmt: skip
