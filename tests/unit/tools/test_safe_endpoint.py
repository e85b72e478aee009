"""What `sparkd init` offers so that an endpoint is safe to show, on machines made of files, and what it never does."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import convert
from tests.machines.areas import healthy
from tests.tree import Tree
from tests.unit import plans
from tests.unit.plans import configured
from tests.unit.tools.node_settings import OWN, own_recipe, settings, take_back

from sparkd.base.config import load_settings
from sparkd.base.host import Host, network
from sparkd.base.lib.errors import ConfigError, ExitCode, UsageError
from sparkd.base.plan.fingerprint import read_secrets
from sparkd.tools.cli.main import build_parser, main
from sparkd.tools.setup.choice import Wishes
from sparkd.tools.setup.node_files import HEADER, NodeFiles
from sparkd.tools.setup.wizard import Wizard

KEY, WEBHOOK = "/etc/sparkd/api.key", "/etc/sparkd/webhook"
URL = "https://me:s3cret@ntfy.example/my-topic"
Run = Callable[..., str]


@pytest.fixture
def spark(spark: Tree) -> Tree:
    own_recipe(spark)
    return spark


def lines_of(answers: tuple[str, ...]) -> Callable[[str], str]:
    waiting: Iterator[str] = iter(answers)

    def prompt(question: str) -> str:
        print(question)
        return f"{next(waiting)}\n"

    return prompt


@pytest.fixture
def run(spark: Tree, capsys: pytest.CaptureFixture[str]) -> Run:
    def started(*answers: str, **options: object) -> str:
        wishes = convert({"recipe": "mine", "yes": not answers, **options}, Wishes)
        Wizard(wishes, NodeFiles(Host(spark.root), {}), print, lines_of(answers)).serve()
        return capsys.readouterr().out

    return started


def test_a_node_that_never_served_gets_a_key_by_one_yes_and_nothing_prints_it(spark: Tree, run: Run) -> None:
    shown = run("", "", "y")
    key = spark.path(KEY).read_text()
    assert len(key) > 40
    assert key.strip() not in shown
    assert spark.path(KEY).stat().st_mode & 0o7777 == 0o600
    assert f"writes    {OWN}: engine.recipe = mine" in shown
    assert f"          {KEY}: a new key" in shown
    assert settings(spark)["engine"] == {"recipe": "mine", "secrets": {"VLLM_API_KEY": KEY}}
    assert load_settings({}, spark.root).engine.secrets == {"VLLM_API_KEY": KEY}
    assert "/tokenize, /invocations, /metrics stay open" in shown
    assert "try       sudo sed 's/^/Authorization: Bearer /' /etc/sparkd/api.key |\n          curl -H @- http" in shown
    assert key.strip() not in spark.path("/var/lib/sparkd/setup.json").read_text()
    another = run("", "y", recipe="mine")
    assert "Make a key" not in another
    assert spark.path(KEY).read_text() == key


def test_a_key_is_one_that_the_engine_gets_whole(spark: Tree, run: Run) -> None:
    run(api_key=True)
    key = spark.path(KEY)
    plan = plans.plan(plans.ALONE, configured(engine={"secrets": {"VLLM_API_KEY": str(key)}}))
    assert read_secrets(Host().files, plan) == {"VLLM_API_KEY": key.read_text().rstrip("\n")}


@pytest.mark.parametrize("options", [{}, {"plan": True}, {"api_key": False}])
def test_without_a_person_or_their_wish_no_key_is_made(spark: Tree, run: Run, options: dict[str, object]) -> None:
    shown = run(**options)
    assert not spark.path(KEY).exists()
    assert "          sudo sparkd init --api-key\n" in shown
    assert "secrets" not in shown


def test_a_plan_shows_the_key_that_would_be_made_and_makes_none(spark: Tree, run: Run) -> None:
    shown = run(plan=True, api_key=True)
    assert f"          {KEY}: a new key" in shown
    assert "engine.secrets = {'VLLM_API_KEY': '/etc/sparkd/api.key'}" in shown
    assert f"key       {KEY}\n" in shown
    assert "sudo sparkd init --api-key" not in shown
    assert not spark.path(KEY).exists()


def test_a_plan_with_messages_does_not_say_that_none_will_come(spark: Tree, run: Run) -> None:
    spark.file("/etc/sparkd/hook", f"{URL}\n", mode=0o600)
    assert "messages  none" not in run(plan=True, webhook_file="/etc/sparkd/hook")
    assert "messages  none" in run(plan=True)


def an_agent_runs(spark: Tree) -> None:
    spark.process(4242, "sparkd", start_time=100, argv=("/usr/bin/sparkd", "run"))
    spark.owner(4242)


def it_has_served_before(spark: Tree) -> None:
    spark.file("/var/lib/sparkd/known-good.json", "{}")


def another_program_serves(spark: Tree) -> None:
    spark.listening((8000, 55))


def its_ports_are_unreadable(spark: Tree) -> None:
    spark.path("/proc/net/tcp").unlink()
    spark.folder("/proc/net/tcp")


@pytest.mark.parametrize(
    "prepare", [an_agent_runs, it_has_served_before, another_program_serves, its_ports_are_unreadable]
)
def test_where_clients_may_have_no_key_an_option_alone_makes_one(
    spark: Tree, run: Run, prepare: Callable[[Tree], None]
) -> None:
    prepare(spark)
    assert "Make a key" not in run("", "y")
    assert not spark.path(KEY).exists()
    run("", "y", api_key=True)
    assert spark.path(KEY).exists()


@pytest.mark.parametrize("answer", ["n", "yes please"])
def test_another_answer_than_yes_or_enter_makes_no_key(spark: Tree, run: Run, answer: str) -> None:
    run(answer, "", "y")
    assert not spark.path(KEY).exists()


def test_a_write_that_is_refused_makes_nothing_of_what_was_agreed_to(spark: Tree, run: Run) -> None:
    run("y", URL, "n")
    assert [name.name for name in spark.path("/etc/sparkd").iterdir()] == ["recipes"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_an_api_for_the_node_itself_needs_no_key_and_no_firewall(spark: Tree, run: Run, host: str) -> None:
    own_recipe(spark, args={"host": host})
    shown = run("", "y")
    assert "Make a key" not in shown
    assert "firewall" not in shown
    assert "\nkey  " not in shown


def test_a_key_that_a_person_made_is_used_and_stays(spark: Tree, run: Run) -> None:
    spark.file(KEY, "mine\n", mode=0o600)
    shown = run("", "", "y")
    assert f"{KEY}: a new key" not in shown
    assert settings(spark)["engine"] == {"recipe": "mine", "secrets": {"VLLM_API_KEY": KEY}}
    assert not any(KEY in line for line in take_back(spark))
    assert spark.path(KEY).read_text() == "mine\n"


def test_what_was_written_is_taken_back_except_a_key_that_a_person_put_in_its_place(spark: Tree, run: Run) -> None:
    run("y", URL, "y")
    lines = take_back(spark)
    assert {f"removed {KEY}", f"removed {WEBHOOK}", f"removed {OWN}"} <= set(lines)
    run("y", "", "y")
    spark.file(KEY, "mine\n", mode=0o600)
    run(api_key=True)
    assert f"left {KEY}: it was changed since" in take_back(spark)
    assert spark.path(KEY).read_text() == "mine\n"


@pytest.mark.parametrize(("content", "mode", "why"), [("mine\n", 0o640, "has mode 0640"), ("\n", 0o600, "is empty")])
def test_an_unfit_file_in_the_place_of_a_key_ends_it_before_anything_is_written(
    spark: Tree, run: Run, content: str, mode: int, why: str
) -> None:
    spark.file(KEY, content, mode=mode)
    with pytest.raises(ConfigError, match=why):
        run(api_key=True, nodes=1)
    assert not spark.path(OWN).exists()


def test_a_link_in_the_place_of_a_key_ends_it_before_anything_is_written(spark: Tree, run: Run) -> None:
    spark.link(KEY, "/etc/shadow")
    with pytest.raises(ConfigError, match="is a symlink"):
        run(api_key=True, nodes=1)
    assert not spark.path(OWN).exists()


@pytest.mark.parametrize(
    ("named", "made"),
    [
        ("/etc/sparkd/vllm_api_key", True),
        *((named, False) for named in ("/etc/sparkd/cluster.key", "/etc/sparkd/sparkd.toml", "/etc/nologin")),
        ("/etc/sparkd/conf.d/api.key", False),
    ],
)
def test_a_recipe_has_a_key_made_only_where_nothing_else_is_read(spark: Tree, run: Run, named: str, made: bool) -> None:
    own_recipe(spark, secrets={"VLLM_API_KEY": named})
    run(api_key=True)
    assert spark.path(named).exists() is made
    assert "secrets" not in settings(spark)["engine"]


def test_a_key_that_the_settings_name_is_made_where_they_name_it(spark: Tree, run: Run) -> None:
    spark.file("/etc/sparkd/sparkd.toml", '[engine.secrets]\nVLLM_API_KEY = "/srv/keys/api"\nHF_TOKEN = "/t"\n')
    spark.folder("/srv/keys")
    run("", "", "y")
    assert spark.path("/srv/keys/api").read_text().startswith("sk-")
    assert "secrets" not in settings(spark)["engine"]


def test_a_secret_that_a_person_added_to_inits_file_is_not_lost(spark: Tree, run: Run) -> None:
    run()
    spark.file(OWN, f'{spark.path(OWN).read_text()}[engine.secrets]\nHF_TOKEN = "/t"\n')
    with pytest.raises(ConfigError, match="has keys or comments"):
        run(api_key=True)
    assert not spark.path(KEY).exists()


@pytest.mark.parametrize(
    ("url", "template"),
    [
        (URL, "ntfy"),
        ("https://hooks.slack.com/services/T0/B0/x", "slack"),
        ("https://discord.com/api/webhooks/1/x", "discord"),
        ("https://slack.com.evil.example/x", "ntfy"),
    ],
)
def test_a_typed_url_is_kept_for_root_alone_and_never_shown(spark: Tree, run: Run, url: str, template: str) -> None:
    shown = run("n", url, "y")
    assert spark.path(WEBHOOK).read_text() == f"{url}\n"
    assert spark.path(WEBHOOK).stat().st_mode & 0o7777 == 0o600
    assert settings(spark)["notify"] == {"webhook_file": WEBHOOK, "template": template}
    assert not any(part in shown for part in (url, "s3cret", "my-topic"))
    assert "next      sudo sparkd notify test" in shown
    assert "messages  none" not in shown


@pytest.mark.parametrize("typed", ["http://ntfy.example/s3cret", "https://\x1b[2J/s3cret"])
def test_what_is_no_url_ends_it_without_a_trace_of_it(spark: Tree, run: Run, typed: str) -> None:
    with pytest.raises(UsageError) as caught:
        run("y", typed, "y")
    assert "s3cret" not in str(caught.value)
    assert [name.name for name in spark.path("/etc/sparkd").iterdir()] == ["recipes"]


def test_a_file_with_a_url_is_taken_by_an_option_and_stays(spark: Tree, run: Run) -> None:
    spark.file("/etc/sparkd/hook", f"{URL}\n", mode=0o600)
    spark.file("/etc/sparkd/sparkd.toml", '[notify]\ntemplate = "slack"\n')
    assert "sudo sparkd notify test" in run(webhook_file="/etc/sparkd/hook")
    assert settings(spark)["notify"] == {"webhook_file": "/etc/sparkd/hook"}
    take_back(spark)
    assert spark.path("/etc/sparkd/hook").read_text() == f"{URL}\n"


def test_a_file_with_a_url_that_others_read_is_refused_without_it(spark: Tree, run: Run) -> None:
    spark.file("/etc/sparkd/hook", URL, mode=0o644)
    with pytest.raises(ConfigError) as caught:
        run(webhook_file="/etc/sparkd/hook")
    assert "s3cret" not in str(caught.value)
    assert not spark.path(OWN).exists()


def test_a_file_with_a_url_that_is_not_there_is_a_mistake_in_the_command(spark: Tree, run: Run) -> None:
    with pytest.raises(UsageError):
        run(webhook_file="/etc/sparkd/hook")
    assert not spark.path(OWN).exists()


def test_a_file_with_a_url_is_named_as_settings_need_it() -> None:
    named = build_parser("init").parse_args(["init", "--webhook-file", "../hook"])
    assert named.webhook_file == str(Path("../hook").resolve())
    with pytest.raises(UsageError, match=r"'/etc/a:b\\x1b': a path may hold no \.\., no colon"):
        build_parser("init").parse_args(["init", "--webhook-file", "/etc/a:b\x1b"])


def test_a_persons_file_with_a_url_is_named_for_the_option_instead_of_a_question(spark: Tree, run: Run) -> None:
    spark.file(WEBHOOK, URL, mode=0o600)
    shown = run("n", "y")
    assert "URL for messages" not in shown
    assert f"sudo sparkd init --webhook-file {WEBHOOK}" in shown


def test_a_persons_broken_link_in_the_place_of_a_url_stays_and_is_not_proposed(spark: Tree, run: Run) -> None:
    spark.link(WEBHOOK, "/nowhere")
    shown = run("n", "y")
    assert "URL for messages" not in shown
    assert f"sudo sparkd init --webhook-file {WEBHOOK}" not in shown
    assert spark.path(WEBHOOK).is_symlink()


@pytest.mark.parametrize(
    ("ufw", "first"),
    [
        (None, "sudo nft 'table inet sparkd; flush table inet sparkd"),
        ("ENABLED=yes\n", "sudo ufw allow proto tcp from YOUR-NETWORK to any port 8000"),
        ("ENABLED=no\n", "sudo nft 'table inet sparkd; flush table inet sparkd"),
    ],
)
def test_the_firewalls_line_is_that_of_what_the_machine_has(spark: Tree, run: Run, ufw: str | None, first: str) -> None:
    if ufw:
        spark.file("/usr/sbin/ufw", "")
        spark.file("/etc/ufw/ufw.conf", f"# a comment: ENABLED=yes\n{ufw}")
    lines = run().splitlines()
    at = lines.index(f"firewall  {first}")
    assert max(map(len, lines[at - 2 : -1])) <= 80


def cluster_lines(spark: Tree, run: Run) -> str:
    """What `init` shows on the head of two nodes."""
    spark.file("/etc/sparkd/sparkd.toml", '[cluster]\nnodes = ["10.0.0.1", "fd00::2"]\n')
    spark.file("/etc/sparkd/cluster.key", f"{'ab' * 32}\n", mode=0o600)
    own_recipe(spark, nodes={"min": 2, "max": 2}, args={"tensor-parallel-size": 2})
    return run()


def test_nodes_of_a_cluster_reach_each_other_through_the_firewall(spark: Tree, run: Run) -> None:
    shown = cluster_lines(spark, run)
    assert "            tcp dport 8000 iif lo accept\n" in shown, "by ::1 too: a dropped SYN holds a client for minutes"
    assert "            tcp dport 8000 ip saddr 10.0.0.1 accept\n" in shown
    assert "            tcp dport 8000 ip6 saddr fd00::2 accept\n" in shown


def test_nodes_of_a_cluster_reach_each_other_through_ufw(spark: Tree, run: Run) -> None:
    spark.file("/usr/sbin/ufw", "")
    spark.file("/etc/ufw/ufw.conf", "ENABLED=yes\n")
    shown = cluster_lines(spark, run)
    assert shown.count("          sudo ufw allow from ") == 1
    assert "          sudo ufw allow from fd00::2\n" in shown, "all ports: vLLM's, NCCL's and sparkd's"


@pytest.mark.parametrize(
    ("address", "subnet"), [("10.0.0.1", "10.0.0.0/24"), ("203.0.113.9", ""), ("fe80::1", ""), ("spark1.lan", "")]
)
def test_the_network_of_an_address_is_the_kernels_route(tree: Tree, address: str, subnet: str) -> None:
    healthy(tree, 0)
    assert network.subnet_of(Host(tree.root).files, address) == subnet


@pytest.mark.parametrize("option", ["--api-key", "--webhook-file=/etc/x"])
def test_a_node_that_joins_is_given_neither(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--join", option]) == ExitCode.USAGE
    assert "for the head" in capsys.readouterr().err


def test_inits_file_says_whose_it_is(spark: Tree, run: Run) -> None:
    run(api_key=True)
    assert spark.path(OWN).read_text().startswith(HEADER)
    assert os.stat(spark.path(OWN)).st_mode & 0o777 == 0o644
