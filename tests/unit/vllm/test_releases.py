"""A launch is judged by the release that its image has; reasons name the release with which a name came or went."""

import pytest
from msgspec.structs import replace
from tests.unit.lint_launches import judge, launch_without_gpu

from sparkd.base.lib import read_data
from sparkd.base.vllm.command import first_values, parse_command
from sparkd.base.vllm.flag import SHIPPED, Flag, FlagTable
from sparkd.base.vllm.lint import rules
from sparkd.base.vllm.lint.launch import Launch
from sparkd.base.vllm.releases import FILE, find_release, known_release, load_releases, minor_version

VERSIONS = [f"0.{number}" for number in range(33, 11, -1)]
OWN = replace(find_release("0.27"), image="fork:1")


def find_reason(table: FlagTable, words: str) -> str:
    """The reason of the only issue, which warns."""
    (issue,) = rules.find_issues(launch_without_gpu(words, table=table))
    assert not issue.blocks
    return issue.reason


def test_every_minor_release_of_a_year_is_known() -> None:
    assert [minor_version(table) for table in load_releases()] == VERSIONS
    assert load_releases()[0] is SHIPPED
    assert len(read_data(FILE)) < 128 << 10


def test_no_release_of_this_year_had_fewer_flags_than_the_one_before() -> None:
    counts = [len(table.flags) for table in load_releases()]
    assert counts == sorted(counts, reverse=True)


def test_an_earlier_release_has_as_much_as_the_parser_of_its_wheel() -> None:
    table = find_release("0.32")
    assert len(table.flags) == 316
    assert len(table.variables) == 316
    assert sum(map(len, table.fields.values())) == 242


@pytest.mark.parametrize("table", load_releases(), ids=VERSIONS)
def test_no_release_has_one_name_twice_or_fields_of_a_flag_that_it_lacks(table: FlagTable) -> None:
    assert len({flag.name for flag in table.flags}) == len(table.flags)
    assert table.fields.keys() <= {flag.name for flag in table.flags}
    assert all(len({field.name for field in fields}) == len(fields) for fields in table.fields.values())


@pytest.mark.parametrize("table", load_releases(), ids=VERSIONS)
def test_each_release_has_the_no_form_of_a_switch(table: FlagTable) -> None:
    assert judge(launch_without_gpu("--no-enable-prefix-caching", table=table)) == []


@pytest.mark.parametrize(
    ("fork", "words"),
    [
        (Flag("block-size", "text", choices=("auto", "16")), "--block-size small"),
        (Flag("hf-overrides", "int", choices=("1",)), "--hf-overrides abc"),
    ],
    ids=["a release has numbers for it", "a number where vLLM has JSON"],
)
def test_a_choice_of_a_fork_that_is_no_number_elsewhere_is_judged(fork: Flag, words: str) -> None:
    flags = tuple(fork if flag.name == fork.name else flag for flag in OWN.flags)
    assert judge(launch_without_gpu(words, table=replace(OWN, flags=flags))) == ["flag-choice blocks"]


OF_KIND = {"text": "abc", "float": "0.5", "json": "{}", "object": "{}", "text or object": "abc"}
NAMES = ("flag-", "json-", "variable-", "misnamed", "not-registered")
"""How the rules of names and single values begin."""


def example_words(flag: Flag) -> list[str]:
    if flag.kind == "switch":
        return [f"--{flag.name}"]
    if flag.name == "attention-backend":  # its names are those of a field of --attention-config
        return [f"--{flag.name}", "FLASH_ATTN"]
    return [f"--{flag.name}", [*flag.choices, *flag.registered, OF_KIND.get(flag.kind, "16")][0]]


@pytest.mark.parametrize("table", load_releases(), ids=VERSIONS)
def test_nothing_that_a_release_itself_has_is_a_fault_by_its_table(table: FlagTable) -> None:
    words = [word for flag in table.flags for word in example_words(flag)]
    given = parse_command(("vllm", "serve", "/m", *words))
    env = dict.fromkeys(table.variables, "1")
    launch = Launch(flags=first_values(words), gpu=False, env=env, given=given, vllm=table)
    assert [issue for issue in rules.find_issues(launch) if issue.rule.startswith(NAMES)] == []
    assert len(given) >= len(table.flags) > 150
    assert env


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.29", "0.29"), ("0.29.7", "0.29"), ("vllm/vllm-openai:v0.29.0", "0.29"), ("r:5000/x/vllm:0.30.1", "0.30"),
        ("vllm-openai:v0.31.0-cu130", "0.31"), ("0.99", "0.33"), ("vllm:v0.28.1rc1", "0.33"), ("mine:0.29.0", "0.33"),
        ("vllm:0.28.1.dev4", "0.33"), ("nvidia/vllm:26.01-py3", "0.33"), ("vllm@sha256:00.29.1", "0.33"), ("", "0.33"),
        ("vllm:0.1.dev20482+g83cb22a0e", "0.33"),
    ],
)  # fmt: skip
def test_the_release_is_read_from_a_version_or_the_tag_of_an_image_of_vllm(text: str, version: str) -> None:
    assert minor_version(find_release(text)) == version


@pytest.mark.parametrize("text", ["vllm:v0.33.0", "0.33", "0.32.1"])
def test_a_text_that_names_a_release_differs_from_one_that_is_taken_for_the_newest(text: str) -> None:
    assert known_release(text) is find_release(text)
    assert known_release("vllm:nightly") is known_release("0.99") is None


@pytest.mark.parametrize(
    ("table", "word", "reason"),
    [
        (find_release("0.27"), "--max-num-queued-reqs", "is no flag of vLLM 0.27.1; it came with 0.29"),
        (SHIPPED, "--calculate-kv-scales", "is no flag of vLLM 0.33.0; it went with 0.28"),
        (SHIPPED, "--swap-space", "is no flag of vLLM 0.33.0: nothing has its place; it went with 0.18"),
        (find_release("0.32"), "--enable-bf16x3-router-gemm", "; it came with 0.26 and went with 0.30"),
        (find_release("0.30"), "--disable-prefix-caching", "; it came with 0.33"),
    ],
)
def test_a_flag_of_another_release_warns_and_says_with_which_it_came_or_went(
    table: FlagTable, word: str, reason: str
) -> None:
    assert reason in find_reason(table, word)


def test_what_the_images_own_vllm_lacks_is_an_error_and_says_who_has_it() -> None:
    (issue,) = rules.find_issues(launch_without_gpu("--monokernel", table=OWN))
    assert issue.blocks
    assert issue.reason == "--monokernel is no flag of the vLLM in fork:1; it came with 0.33"


def test_a_name_of_another_release_is_no_misprint() -> None:
    fewer = replace(OWN, flags=tuple(flag for flag in OWN.flags if flag.name != "enable-moe-shared-loras"))
    near = replace(fewer, flags=(*fewer.flags, replace(fewer.flags[0], name="enable-moe-shared-lora", aliases=())))
    (issue,) = rules.find_issues(launch_without_gpu("--enable-moe-shared-loras", table=near))
    assert "it came with 0.26" in issue.reason
    assert ": --enable-moe-shared-lora is" not in issue.reason


def test_a_choice_names_the_releases_that_have_it() -> None:
    assert "it came with 0.15 and went with 0.32" in find_reason(SHIPPED, "--mamba-cache-mode all")


def test_a_key_of_json_names_the_releases_that_have_it() -> None:
    reason = find_reason(SHIPPED, '--kv-transfer-config {"kv_connector":"NixlConnector","kv_ip":"::1"}')
    assert reason == "--kv-transfer-config: kv_ip is no key of vLLM 0.33.0; it went with 0.32"


def test_a_variable_names_the_release_with_which_it_went() -> None:
    launch = Launch({}, {"VLLM_MXFP4_USE_MARLIN": "1"}, gpu=False)
    (issue,) = rules.find_issues(replace(launch, vllm=find_release("0.31")))
    assert issue.reason == "VLLM_MXFP4_USE_MARLIN=1 does nothing in vLLM 0.31.0; it went with 0.24"
    assert not issue.blocks
    assert judge(replace(launch, vllm=find_release("0.23"))) == []
    assert judge(launch) == [], "the release of an image that is away is not known"
