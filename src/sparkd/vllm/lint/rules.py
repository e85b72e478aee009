"""The table of rules: predicate, severity, description, hint and source; and the predicates on the table of flags.

An image may contain a fork with more flags and choices, so only values that no build of vLLM can read, and names one
typing error away from a flag, are certain to fail.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from msgspec import Struct

from sparkd.lib.text import did_you_mean
from sparkd.vllm.flag import Flag, ParsedFlag, misprint_of
from sparkd.vllm.flag_table import FLAGS, VERSION
from sparkd.vllm.lint import fields, predicates, values
from sparkd.vllm.lint.predicates import JSON_FLAGS, JSON_OR_TEXT, NOTHING, RENAMED, Launch, Matches, about

_BY_NAME = {flag.name: flag for flag in FLAGS} | {f"no-{flag.name}": flag for flag in FLAGS if flag.negative}
NAMES = tuple(_BY_NAME)


class Rule(Struct, frozen=True):
    name: str
    blocks: bool
    """Whether the engine would fail or freeze the machine; otherwise it only serves worse than possible."""
    matches: Callable[[Launch], Matches]
    what: str
    hint: str
    source: str


class Issue(Struct, frozen=True):
    rule: str
    blocks: bool
    at: str
    """Key of a recipe, such as `args.max-model-len`."""
    reason: str
    hint: str


def find_issues(launch: Launch) -> tuple[Issue, ...]:
    return tuple(
        Issue(rule.name, rule.blocks, at, reason, rule.hint) for rule in RULES for at, reason in rule.matches(launch)
    )


def wrong_value(launch: Launch) -> Matches:
    return _match_known(launch, _unreadable)


def not_a_choice(launch: Launch) -> Matches:
    return _match_known(launch, _unlisted)


def _match_known(launch: Launch, why: Callable[[ParsedFlag, Flag], str]) -> Matches:
    for one, head in _judged(launch):
        if head in _BY_NAME and (reason := why(one, _BY_NAME[head])):
            yield about(one.name, reason)


def likely_typo(launch: Launch) -> Matches:
    for one, head in _judged(launch):
        if right := _typo_of(head):
            yield about(one.name, f"is no flag of vLLM {VERSION}: --{right} is")


def unknown(launch: Launch) -> Matches:
    for one, head in _judged(launch):
        if head in _BY_NAME or _typo_of(head):
            continue
        whole = _completed(head)
        if not whole:
            yield about(one.name, f"is no flag of vLLM {VERSION}{did_you_mean(head, NAMES)}")
        elif reason := _unreadable(one, _BY_NAME[whole]) or _unlisted(one, _BY_NAME[whole]):
            yield about(one.name, f"is read as --{whole}, and {reason}")


def _judged(launch: Launch) -> Iterator[tuple[ParsedFlag, str]]:
    """Each flag with its name before a dot, except flags covered by the recipe or another rule."""
    for one in launch.given:
        head = one.name.partition(".")[0]
        if not {head, head.removeprefix("no-")} & set(launch.extra) and head not in RENAMED:
            yield one, head


def _completed(name: str) -> str:
    """The flag that vLLM takes an abbreviation for: the only one with this prefix."""
    alike = [one for one in NAMES if one.startswith(name)]
    return alike[0] if len(alike) == 1 else ""


def _unreadable(one: ParsedFlag, flag: Flag) -> str:
    """Why vLLM can't read the flag, apart from its choices."""
    return next(filter(None, (_wrong_arity(one, flag), *(_wrong_type(flag, text) for text in _texts(one)))), "")


def _unlisted(one: ParsedFlag, flag: Flag) -> str:
    if "." in one.name or _unreadable(one, flag):
        return ""
    return next(filter(None, (flag.not_a_choice(text) for text in _texts(one))), "")


def _wrong_arity(one: ParsedFlag, flag: Flag) -> str:
    if "." not in one.name:
        return flag.wrong_arity(len(one.values), one.joined)
    # vLLM takes exactly the next word.
    return "" if len(one.values) == 1 else f"takes one value, and {len(one.values) or 'none'} is given"


def _texts(one: ParsedFlag) -> Iterator[str]:
    """The values as the flag gets them: a dotted field becomes an object."""
    for value in one.values:
        if value is not None:
            yield json.dumps({"field": value}) if "." in one.name else value


def _wrong_type(flag: Flag, text: str) -> str:
    by_json_rule = flag.name in (*JSON_FLAGS, *JSON_OR_TEXT) and text not in NOTHING  # which reports the position
    return "" if by_json_rule else flag.wrong_type(text)


def _typo_of(name: str) -> str:
    """The flag whose name differs by one letter: wrong, missing, extra, or swapped with its neighbour."""
    return "" if name in _BY_NAME or _completed(name) else misprint_of(name, NAMES)


BLOCKS, WARNS = True, False
ECHO = "'DeepSeek V4 Flash on Dual DGX Spark', Echo, 27 May 2026"
RULES = (
    Rule("fork", WARNS, predicates.forks,
         what="VLLM_WORKER_MULTIPROC_METHOD=fork on a GPU",
         hint="take VLLM_WORKER_MULTIPROC_METHOD out, unless the source of the recipe needs it",
         source=f"{ECHO}: the engine died at its start; other public recipes serve with it"),
    Rule("json", BLOCKS, predicates.broken_json,
         what="a flag that vLLM parses as JSON is given text that is no JSON object",
         hint="write it as a mapping in the recipe: sparkd makes the JSON",
         source="measured on vLLM 0.32: it ends with status 2"),
    Rule("flag-value", BLOCKS, wrong_value,
         what="a flag is given a value of another type than vLLM's parser reads, none, or too many",
         hint="correct it; where a fork's flag takes it, name the flag under flags.extra of the recipe",
         source="the parser of vLLM 0.32 (`make flags`): it ends with status 2"),
    Rule("flag-misprint", BLOCKS, likely_typo,
         what="a flag that vLLM does not know, one letter from one that it does",
         hint="correct it; where a fork has this flag, name it under flags.extra of the recipe",
         source="the parser of vLLM 0.32 (`make flags`): it ends with status 2"),
    Rule("json-field", BLOCKS, fields.surely_wrong,
         what="in a flag's JSON, a key one letter from one that vLLM knows, or no number where one is needed",
         hint="correct it; where a fork's flag takes it, name the flag under flags.extra of the recipe",
         source="the classes of vLLM 0.32 (`make flags`): it ends with status 2 or 1"),
    Rule("json-unknown", WARNS, fields.unknown,
         what="in a flag's JSON, a key or a value that vLLM 0.32 does not know; a fork may have more",
         hint="correct it, or name the flag under flags.extra where a fork has it: upstream ends with status 2 or 1",
         source="the classes of vLLM 0.32 (`make flags`)"),
    Rule("tool-choice", BLOCKS, values.incomplete,
         what="enable-auto-tool-choice without tool-call-parser, enable-log-outputs without enable-log-requests",
         hint="give the other flag too, or take this one out",
         source="vLLM 0.32 (validate_parsed_serve_args): it ends with status 1"),
    Rule("parser-unused", WARNS, values.unused,
         what="tool-call-parser without enable-auto-tool-choice",
         hint="add enable-auto-tool-choice: true, or take the parser out",
         source="vLLM 0.32: it answers requests with tool_choice auto, the default, with status 400"),
    Rule("not-registered", WARNS, values.unregistered,
         what="a parser or load format that vLLM 0.32 does not register, without a plugin that may",
         hint="correct it, or name the flag under flags.extra where a fork has it: upstream ends with status 1",
         source="the registries of vLLM 0.32 (`make flags`)"),
    Rule("unfilled", WARNS, values.unfilled,
         what="a placeholder of another tool or a variable of the shell in a flag or in the environment",
         hint="write the value, or a placeholder of sparkd's: `sparkd recipe schema` names the format",
         source="plan/build.py: all words are quoted for the shell"),
    Rule("connector-memory", BLOCKS, values.moves_memory,
         what="kv-transfer-config or kv-offloading-size with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
         hint=f"leave {values.ALLOCATOR} out, or set it to null; or add enable-cumem-allocator: true",
         source="vLLM 0.32 (_verify_kv_transfer_compat): it ends with status 1, as memory may move while it is pinned"),
    Rule("out-of-range", BLOCKS, values.out_of_range,
         what="a number that vLLM's classes refuse, or speculative decoding without the model that it needs",
         hint="correct it, or name the draft's model in speculative-config",
         source="the classes of vLLM 0.32: it ends with status 1"),
    Rule("model-length", BLOCKS, predicates.longer_than_model,
         what="max-model-len is above what config.json of the model allows",
         hint="lower max-model-len",
         source="measured on vLLM 0.32: it ends with status 1"),
    Rule("pool-length", WARNS, predicates.longer_than_pool,
         what="max-model-len is above the recipe's expect.kv_cache_tokens, which holds for the recipe's own length",
         hint="lower max-model-len, or correct expect.kv_cache_tokens",
         source="measured on vLLM 0.32: it ends with status 1 when one sequence does not fit"),
    Rule("unchunked-prefill", BLOCKS, predicates.unchunked,
         what="max-num-batched-tokens below max-model-len without chunked prefill",
         hint="take enable-chunked-prefill: false out",
         source="measured on vLLM 0.32: it ends with status 1"),
    Rule("batch", BLOCKS, predicates.batch_below_sequences,
         what="max-num-batched-tokens is below max-num-seqs",
         hint="raise max-num-batched-tokens",
         source="measured on vLLM 0.32: it ends with status 1"),
    Rule("memory-share", BLOCKS, predicates.too_much_memory,
         what=f"gpu-memory-utilization is above {predicates.TOO_HIGH_SHARE}",
         hint="lower gpu-memory-utilization",
         source="recipes and reports of DGX Spark: no idle machine had so much memory available"),
    Rule("high-memory-share", WARNS, predicates.much_memory,
         what=f"gpu-memory-utilization is above {predicates.HIGHEST_SHARE}, or left out",
         hint="set gpu-memory-utilization to 0.90 or lower",
         source="recipes and reports of DGX Spark: the highest share that worked"),
    Rule("misnamed-flag", WARNS, predicates.misnamed,
         what="a flag that recipes in public have, and vLLM 0.32 does not know",
         hint="take it out, or use the right name: vLLM ends with status 2",
         source="measured on vLLM 0.32; its pull requests 17452, 21739, 28006 and 29326"),
    Rule("flag-unknown", WARNS, unknown,
         what="a flag that vLLM 0.32 does not know, and flags.extra of the recipe does not name",
         hint="correct it, or name it under flags.extra where a fork has it: upstream ends with status 2",
         source="the parser of vLLM 0.32 (`make flags`)"),
    Rule("flag-choice", WARNS, not_a_choice,
         what="a value that is none of the flag's choices in vLLM 0.32; a fork may have more",
         hint="correct it, or name the flag under flags.extra where a fork has it: upstream ends with status 2",
         source="the parser of vLLM 0.32 (`make flags`)"),
    Rule("long-by-will", WARNS, predicates.longer_than_model_by_will,
         what="as model-length, but VLLM_ALLOW_LONG_MAX_MODEL_LEN is set",
         hint="lower max-model-len: positions beyond the model's own may give NaN",
         source="vLLM's own warning"),
    Rule("pool-sequences", WARNS, predicates.many_pools,
         what=f"max-num-seqs x max-model-len is above {predicates.MANY_POOLS} x the KV cache",
         hint="lower max-num-seqs or max-model-len, or know that sequences are mostly short",
         source="MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark, 'How the KV cache works'"),
    Rule("eager", WARNS, predicates.eager_with_graphs,
         what="enforce-eager together with a cudagraph_mode",
         hint="take enforce-eager out, or set cudagraph_mode: NONE",
         source=ECHO),
    Rule("drafts", WARNS, predicates.many_drafts,
         what="more draft tokens than measured best: 2 with DeepSeek's MTP, 5 with DSpark",
         hint="lower num_speculative_tokens",
         source=f"{ECHO}, 'MTP=3'; MiaAI-Lab's recipe"),
)  # fmt: skip


def describe_rules() -> str:
    """The table in lines of at most 120 columns."""
    return "\n".join(
        f"  {'block' if one.blocks else 'warn':5}  {one.name:17}  {one.what}\n{'':28}{one.source}" for one in RULES
    )
