"""The table of rules, each with its predicate, severity and hint, and the issues that they find in a launch."""

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from sparkd.base.vllm.lint import environment, flags, model_fit, predicates, values
from sparkd.base.vllm.lint.launch import Launch, Matches


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
    Rule("flag-value", BLOCKS, flags.wrong_value,
         hint="correct it; where a fork's flag takes it, name the flag under flags.extra of the recipe"),
    Rule("flag-misprint", BLOCKS, flags.likely_typo,
         hint="correct it; where a fork has this flag, name it under flags.extra of the recipe"),
    Rule("json-field", BLOCKS, partial(flags.wrong_fields, sure=True),
         hint="correct it; where a fork's flag takes it, name the flag under flags.extra of the recipe"),
    Rule("json-unknown", WARNS, partial(flags.wrong_fields, sure=False),
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
    Rule("model-length", BLOCKS, partial(model_fit.longer_than_model, is_allowed=False),
         hint="lower max-model-len"),
    Rule("model-heads", BLOCKS, model_fit.uneven_heads,
         hint="set tensor-parallel-size to one of them, or divide by pipeline-parallel-size"),
    Rule("model-kv-heads", WARNS, model_fit.uneven_kv_heads,
         hint="set tensor-parallel-size to one of them, or divide by pipeline-parallel-size"),
    Rule("model-quantization", BLOCKS, model_fit.other_quantization,
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
    Rule("flag-unknown", WARNS, flags.unknown,
         hint="correct it, or name it under flags.extra where a fork has it: vLLM ends with status 2"),
    Rule("flag-choice", WARNS, flags.not_a_choice,
         hint="correct it, or name the flag under flags.extra where a fork has it: vLLM ends with status 2"),
    Rule("long-by-will", WARNS, partial(model_fit.longer_than_model, is_allowed=True),
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
    Rule("no-counters", WARNS, predicates.without_counters,
         hint="take it out: else such a queue ends the engine"),
    Rule("fetched", WARNS, values.fetched,
         hint="pull it, sudo sparkd model pull NAME --to FOLDER, and name its folder in a mount, such as /models"),
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
