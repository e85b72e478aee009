"""`sparkd use`: back and forth between two recipes under a client, and back by itself from one that does not serve."""

import json
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.bed import engine_image
from tests.bed.conftest import MakeNode
from tests.bed.messages import Receiver
from tests.bed.pair import Cluster
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import HEAD, SparkdNode

SWITCH = "/var/lib/sparkd/switch.json"
USE_SECONDS = 240.0
PLANTED, SYMPTOM = Path(__file__).parent / "files/planted.py", "/srv/planted/symptom"
SYMPTOMS = {
    "empty": "an empty answer",
    "truncated": "cut off: 3 of",
    "repeated": "repeats one piece of text: 'the sea ",
    "nan": "repeats one piece of text: '!!!!",
    "undecodable": "no text: ",
    "foreign": "CJK in the answer to an English prompt",
    "template": "markup of a template or a tool in the answer: ",
    "tool": "markup of a template or a tool in the answer: ",
    "differs": "the same prompt has different answers at temperature 0",
    "aborted": "ended with 'abort'",
    "fails": "a completion failed: HTTP 500",
}
"""What tests/bed/files/planted.py makes of answers, and what smoke calls it."""
RECIPES = {
    "short": """\
extends: tiny-cpu
args:
  max-model-len: 256
  num-gpu-blocks-override: 7
  middleware: planted.Planted
  chat-template: "{% for one in messages %}{{ one.content }}{% endfor %}"
env: {PYTHONPATH: /planted}
container:
  volumes: ["/srv/planted:/planted:ro"]
""",
    "narrow": "extends: tiny-cpu\nargs: {max-num-seqs: 1}\n",
    "broken": "extends: tiny-cpu\nargs: {enable-sleep-mode: true}\n",
    "garbage": "extends: tiny-cpu\nmodel: {path: garbage}\n",
    "missing": "extends: tiny-cpu\nmodel: {path: nowhere}\n",
}
"""`short`: a KV cache of 896 tokens, and a server that can change answers. `broken`: vLLM's parser and sparkd take it;
on a CPU the engine does not."""
MAKE_GARBAGE = """\
import json, pathlib, shutil, struct
shutil.copytree("/srv/models/tiny", "/srv/models/garbage")
for path in pathlib.Path("/srv/models/garbage").glob("*.safetensors"):
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    path.write_bytes(data[:start] + struct.pack("<f", float("nan")) * ((len(data) - start) // 4))
"""
CORE = "/usr/local/lib/python3.11/dist-packages/vllm/v1/engine/core.py"
MAKE_IMAGES = f"""\
docker tag {engine_image.NAME} sparkd-test/second:1
docker create --name made {engine_image.NAME} true
docker cp made:{CORE} /root/core.py
cat >>/root/core.py <<'END'


def slowed(step):
    import time

    def wait(self):
        time.sleep(0.1)
        return step(self)

    return wait


EngineCore.step = slowed(EngineCore.step)
EngineCore.step_with_batch_queue = slowed(EngineCore.step_with_batch_queue)
END
docker cp /root/core.py made:{CORE}
docker commit made sparkd-test/slow:1
docker rm made
"""
"""Of the tiny engine: `second` is the same image by another name; in `slow` each token takes 0.1 s more."""
CLIENT = """\
import http.client, json, sys, time
body = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 40, "ignore_eos": True})
def answer(port, method, path, body=None):
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    client.request(method, path, body, {"Content-Type": "application/json"})
    found = client.getresponse()
    return found.status, len(found.read())
while True:
    try:
        ready = answer(29511, "GET", "/readyz")[0] == 200
    except OSError:
        ready = False
    if ready:
        try:
            outcome = str(answer(8000, "POST", "/v1/completions", body)[0])
        except Exception as error:
            outcome = type(error).__name__
    else:
        outcome = "refused"
        time.sleep(0.2)
    print(outcome, flush=True)
"""
"""Requests /readyz before each request, as a load balancer does."""


@pytest.fixture(scope="module")
def spark(make_node: MakeNode, package: Path) -> SparkdNode:
    """Serving the tiny model, with recipes and weights to change to, and a receiver of messages."""
    spark = SparkdNode(make_node("trixie", package))
    receiver = Receiver(spark.node)
    receiver.listen()
    receiver.configure(spark)
    for name, text in RECIPES.items():
        spark.node.write(f"/etc/sparkd/recipes/{name}.yaml", f"schema: 1\nname: {name}\n{text}")
    spark.node.put(PLANTED, "/srv/planted/planted.py")
    spark.node.write("/root/garbage.py", MAKE_GARBAGE)
    spark.node.run("python3", "/root/garbage.py")
    spark.configure()
    spark.start()
    return spark


@contextmanager
def client(spark: SparkdNode) -> Iterator[Counter[str]]:
    """What the client got, by status or kind of error, once it is over."""
    node, got = spark.node, Counter[str]()
    node.write("/root/client.py", CLIENT)
    node.sh("setsid python3 /root/client.py >/root/client.log 2>&1 & echo $! >/root/client.pid")
    wait_for(lambda: node.read("/root/client.log").count("200\n") > 3, 30, "the client to be served")
    try:
        yield got
    finally:
        node.sh("kill $(cat /root/client.pid)")
        got.update(node.read("/root/client.log").splitlines())


def context_length(spark: SparkdNode) -> int:
    models = json.loads(spark.node.http(8000, "/v1/models").body)
    return int(models["data"][0]["max_model_len"])


def chosen(spark: SparkdNode) -> bool:
    return spark.node.run("test", "-e", SWITCH, check=False).returncode == 0


def test_back_and_forth_loses_no_request_but_those_that_readyz_refuses(spark: SparkdNode) -> None:
    node = spark.node
    with client(spark) as got:
        used = node.run("sparkd", "use", "short", timeout=USE_SECONDS)
        assert used.stdout.splitlines()[-1] == "recipe short is in force", used
        assert context_length(spark) == 256
        assert re.search(
            r"^warn +use: instead of what is configured, recipe short", node.run("sparkd", "status").stdout, re.M
        )
        wait_for(lambda: node.read("/root/client.log").endswith("200\n" * 3), 30, "the client to be served again")
    assert set(got) == {"200", "refused"}, got
    assert node.run("sparkd", "use", "short").stdout == "recipe short is in force already\n"
    receiver = Receiver(node)
    wait_for(lambda: len(receiver.events) > 1, 20, "the message of the switch")
    assert receiver.events == [("serving", node.name), ("switched", node.name)]
    assert "tiny-cpu was replaced; short serves: " in str(receiver.messages[1]["text"])


def test_what_serves_garbage_goes_back_by_itself_and_says_so(spark: SparkdNode) -> None:
    node, cursor = spark.node, spark.cursor()
    used = node.run("sparkd", "use", "garbage", check=False, timeout=USE_SECONDS)
    assert used.returncode == 12
    assert "back to recipe short, recipe garbage did not come up: its smoke test failed" in used.stderr, used
    spark.await_serving()
    assert context_length(spark) == 256
    report = spark.report()
    assert report is not None
    assert report.last_cause_code == "switch-failed"
    assert report.last_cause.startswith("back to recipe short")
    assert "cause=switch-failed" in spark.ends_since(cursor)[0]


@pytest.mark.whole
def test_a_ladder_climbs_until_the_engine_refuses_and_comes_back(spark: SparkdNode) -> None:
    """The engine refuses 1024 tokens of context beside a KV cache of 896."""
    node, words = spark.node, ("sparkd", "tune-recipe", "short", "--knob", "max-model-len=256..1024", "--yes")
    for _ in range(2):  # other work on this machine may slow the second step beyond the spread
        done = node.run(*words, check=False, timeout=USE_SECONDS)
        print(done.stdout, done.stderr)
        assert done.returncode == 0, done
        if "written: " in done.stdout:
            break
    assert "recipe short under 4 requests at once, at most 3 steps:" in done.stdout
    assert re.search(r"^the recipe as it is: [\d.]+ tokens/s \(", done.stdout, re.M)
    assert re.search(r"^max-model-len 512: [\d.]+ tokens/s \(", done.stdout, re.M)
    assert re.search(r"^max-model-len 1024: bad: back to recipe short, .* while sizing the KV cache", done.stdout, re.M)
    assert "this node runs, or is on the way to: recipe short; sparkd status" in done.stdout
    spark.await_serving()
    assert context_length(spark) == 256
    made = node.read("/etc/sparkd/recipes/short-tuned.yaml")
    assert re.search(r'extends: "short"\nargs:\n  max-model-len: 512\nexpect:\n  kv_cache_tokens: 896\n', made), made
    assert "recipe" in node.run("sparkd", "recipe", "check", "/etc/sparkd/recipes/short-tuned.yaml").stdout
    again = node.run(*words, check=False)
    assert (again.returncode, "there is a recipe short-tuned already" in again.stderr) == (2, True), again


def test_what_is_missing_is_said_and_nothing_changes(spark: SparkdNode) -> None:
    node = spark.node
    refused = node.run("sparkd", "use", "missing", check=False)
    assert refused.returncode == 10
    assert "/srv/models/nowhere" in refused.stderr
    assert "sparkd model pull ORGANISATION/NAME --to /srv/models/nowhere" in refused.stderr
    refused = node.run("sparkd", "use", "--image", "nowhere/missing:1", check=False)
    assert refused.returncode == 10
    assert "docker pull nowhere/missing:1" in refused.stderr
    rows = {line.split()[0]: line for line in node.run("sparkd", "use", "--list").stdout.splitlines()}
    assert rows["short"].split()[1:] == ["in", "force"]
    assert rows["tiny-cpu"].split()[1:] == ["yes"]
    assert "nowhere" in rows["missing"]
    assert "needs 2 to 8 node(s)" in rows["tiny-cpu-pair"]
    assert spark.serves()


HEALTHY_TRIES = 3
"""Answers are drawn, and the tiny model is random: one of some twenty may by chance be no text (seen once)."""


def test_each_symptom_of_a_broken_engine_is_found_by_smoke(spark: SparkdNode) -> None:
    """Its server changes what the engine answers, on its way to the client."""
    node, missed = spark.node, []
    node.run("sparkd", "use", "short", timeout=USE_SECONDS)
    try:
        for symptom, fault in {"": "bad outputs: 0", **SYMPTOMS, "none": "bad outputs: 0"}.items():
            node.write(SYMPTOM, symptom)
            for _ in range(1 if symptom in SYMPTOMS else HEALTHY_TRIES):
                shown = node.run("sparkd", "smoke", check=False)
                print(f"{symptom or 'healthy'}: exit {shown.returncode}\n{shown.stdout}")
                seen = (shown.returncode == 12, fault in shown.stdout) == (symptom in SYMPTOMS, True)
                if seen or not all(text in shown.stdout for text in ("bad: no text: ", "bad outputs: 1 ")):
                    break
            if not seen:
                missed.append(symptom)
    finally:
        node.write(SYMPTOM, "")
    assert not missed


def test_the_end_of_a_choice_drains_too(spark: SparkdNode) -> None:
    with client(spark) as got:
        used = spark.node.run("sparkd", "use", "--end", timeout=USE_SECONDS)
        assert used.stdout.splitlines()[-1] == "what is configured is in force", used
        assert not chosen(spark)
        assert context_length(spark) == 512
    assert set(got) == {"200", "refused"}, got


CROWD = """\
import http.client, json, threading, time
body = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 450, "ignore_eos": True})
def crowd():
    while True:
        try:
            client = http.client.HTTPConnection("127.0.0.1", 8000, timeout=600)
            client.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            client.getresponse().read()
        except OSError:
            time.sleep(0.02)
for _ in range(12):
    threading.Thread(target=crowd).start()
"""
"""Twelve clients that come back within 20 ms, in whose queue other requests wait for a minute and longer."""


@pytest.mark.whole
def test_clients_who_fill_the_queue_bring_no_choice_back(spark: SparkdNode) -> None:
    node, late, cursor = spark.node, "/etc/sparkd/conf.d/20-late.toml", spark.cursor()
    node.write(late, "[readiness]\ncompletion_timeout_seconds = 2\n")
    node.write("/root/crowd.py", CROWD)
    node.sh("setsid python3 /root/crowd.py >/dev/null 2>&1 & echo $! >/root/crowd.pid")
    try:
        used = node.run("sparkd", "use", "narrow", check=False, timeout=USE_SECONDS)
        assert used.stdout.splitlines()[-1] == "recipe narrow is in force", used
        journal = spark.journal_since(cursor)
        assert re.search(r"engine\.smoke\.skipped .*no answer within 2 s beside 1\d of clients' requests", journal), (
            journal
        )
    finally:
        node.sh("kill $(cat /root/crowd.pid)")
        node.run("rm", late)
    node.run("sparkd", "use", "--end", timeout=USE_SECONDS)
    assert context_length(spark) == 512


@pytest.mark.whole
def test_what_breaks_at_its_start_goes_back(spark: SparkdNode) -> None:
    used = spark.node.run("sparkd", "use", "broken", check=False, timeout=USE_SECONDS)
    assert used.returncode == 12
    assert "back to what is configured, recipe broken did not come up" in used.stderr, used
    spark.await_serving()
    assert (context_length(spark), chosen(spark)) == (512, False)


@pytest.mark.whole
def test_a_time_that_is_over_brings_back_what_was_also_after_a_power_cut(spark: SparkdNode) -> None:
    node = spark.node
    node.run("sparkd", "use", "short", "--for", "60s", timeout=USE_SECONDS)
    wait_for(lambda: not chosen(spark), 120, "the time to be over")
    spark.await_serving()
    assert context_length(spark) == 512
    node.run("sparkd", "use", "short", "--for", "60s", timeout=USE_SECONDS)
    node.powercut()
    node.sh("sleep 60")
    node.run("systemctl", "start", HEAD, timeout=USE_SECONDS)
    assert (context_length(spark), chosen(spark)) == (512, False)


@pytest.mark.whole
def test_a_ladder_continues_after_an_interrupt_and_a_power_cut(spark: SparkdNode) -> None:
    node, words = spark.node, "sparkd tune-recipe narrow --knob max-num-seqs=1..4 --yes"

    def climb_until(line: str) -> None:
        node.sh(f"setsid {words} >/root/ladder 2>&1 &")
        wait_for(lambda: line in node.read("/root/ladder"), USE_SECONDS, line)

    climb_until("step 2: max-num-seqs 2")
    wait_for(lambda: reached(spark, "loading"), 60, "the engine to load")
    for process in node.found(r"sparkd tune-recipe"):
        process.send(signal.SIGTERM)
    wait_for(lambda: "on the way to: what is configured" in node.read("/root/ladder"), 30, "the way back")
    spark.await_serving()
    assert (context_length(spark), chosen(spark)) == (512, False)
    climb_until("step 2: max-num-seqs 2")
    assert "at most 2 steps more, measured: 1" in node.read("/root/ladder")
    node.powercut()
    node.run("systemctl", "start", HEAD, timeout=USE_SECONDS)
    done = node.run(*words.split(), timeout=2 * USE_SECONDS)
    print(done.stdout, done.stderr)
    assert re.search(r"^max-num-seqs 2: [\d.]+ tokens/s", done.stdout, re.M), done
    assert re.search(r"^max-num-seqs 4: [\d.]+ tokens/s", done.stdout, re.M), done
    outcome = r"^(?:written: .*/narrow-tuned.yaml|nothing was better than recipe narrow)"
    assert re.search(outcome, done.stdout, re.M), "either, as other work on this machine moves the figures"
    wait_for(lambda: not chosen(spark), 60, "the way back from the last step")
    spark.await_serving()
    assert node.run("test", "-e", "/var/lib/sparkd/tune-recipe.json", check=False).returncode == 1


@pytest.mark.whole
def test_a_slower_image_goes_back_and_a_faster_one_stays(spark: SparkdNode) -> None:
    node, figures = spark.node, r"\d+ requests at once: [\d.]+ tokens/s \(.*\); [\d.]+ tokens/s \(.*\) before, 20"

    def running() -> str:
        (name,) = spark.containers()
        return node.run("docker", "inspect", "--format", "{{.Image}}", name).stdout.strip()

    node.sh(MAKE_IMAGES)
    first = running()
    used = node.run("sparkd", "use", "--image", "sparkd-test/slow:1", check=False, timeout=2 * USE_SECONDS)
    print(used.stdout, used.stderr)
    assert used.returncode == 12
    assert re.search(figures, used.stdout), used
    assert (
        "sparkd: slower beyond the spread of both, and by 3%\nthis node runs, or is on the way to: what" in used.stderr
    )
    wait_for(lambda: not chosen(spark), 60, "the way back")
    spark.await_serving()
    assert running() == first
    node.run("sparkd", "use", "--image", "sparkd-test/slow:1", "--no-bench", timeout=USE_SECONDS)
    assert running() != first
    used = node.run("sparkd", "use", "--image", "sparkd-test/second:1", timeout=2 * USE_SECONDS)
    print(used.stdout, used.stderr)
    assert re.search(figures, used.stdout), used
    assert used.stdout.splitlines()[-4:] == [
        "recipe tiny-cpu with image sparkd-test/second:1 is in force",
        "back to the image before: sudo sparkd use --image sparkd-test/slow:1",
        "to keep it for good, in sparkd.toml under [engine], in place of its lines of these names:",
        'image = "sparkd-test/second:1"',
    ]
    assert (running(), json.loads(node.read(SWITCH))["to"]["until"]) == (first, "")
    wait_for(
        lambda: "until" not in node.run("sparkd", "status").stdout, 10, "the trial's end to be gone from the report"
    )


@pytest.mark.whole
def test_an_interrupted_trial_of_an_image_goes_back(spark: SparkdNode) -> None:
    node = spark.node
    if chosen(spark):
        node.run("sparkd", "use", "--end", timeout=USE_SECONDS)
    node.sh(f"docker tag {engine_image.NAME} sparkd-test/second:1")
    node.sh("setsid sparkd use --image sparkd-test/second:1 >/root/image.log 2>&1 &")
    wait_for(lambda: reached(spark, "loading"), USE_SECONDS, "the new image to load")
    assert json.loads(node.read(SWITCH))["to"]["until"] > "2026", "it ends by itself"
    for process in node.found(r"sparkd use"):
        process.send(signal.SIGHUP)
    wait_for(lambda: "on the way to: what is configured" in node.read("/root/image.log"), 30, "the way back")
    spark.await_serving()
    assert not chosen(spark)


MOMENTS = {
    "as it is chosen": "draining",
    "while it drains": "drains",
    "as the next process tries": "trying",
    "as the engine loads": "loading",
    "once it serves": "in-force",
}


def reached(head: SparkdNode, moment: str, *, to_configured: bool = False) -> bool:
    text = head.node.run("cat", SWITCH, check=False).stdout
    stage, report = json.loads(text)["stage"] if text else "", head.report()
    if moment == "drains":
        return report is not None and report.draining
    if moment == "loading":
        return stage == "trying" and report is not None and report.phase.value == "loading"
    return not text if to_configured and moment == "in-force" else bool(stage == moment)


@pytest.mark.whole
@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_a_power_cut_ends_in_one_of_the_two_plans(spark: SparkdNode, moment: str) -> None:
    node = spark.node
    if chosen(spark):
        node.run("sparkd", "use", "--end", timeout=USE_SECONDS)
    node.sh("setsid sparkd use short >/root/use.log 2>&1 &")
    wait_for(lambda: reached(spark, moment), 60, moment)
    node.powercut()
    node.run("systemctl", "start", HEAD, timeout=USE_SECONDS)
    assert spark.serves()
    assert context_length(spark) == 256, "the first cut is not the plan's fault"


PAIR = {
    "short-pair": "extends: tiny-cpu-pair\nargs: {max-model-len: 256}\n",
    "other-pair": "extends: tiny-cpu-pair\nmodel: {path: other}\n",
}


@pytest.fixture(scope="module")
def pair(make_node: MakeNode, package: Path) -> Cluster:
    """Two nodes that serve; recipes and the second model are on the head alone."""
    made = Cluster.of([make_node("trixie", package) for _ in range(2)])
    made.configure()
    addresses = json.dumps([member.node.fabric_address for member in made.members])
    made.worker.configure(f"[cluster]\nnodes = {addresses}\nfollow_head = true\n")
    for name, text in PAIR.items():
        made.head.node.write(f"/etc/sparkd/recipes/{name}.yaml", f"schema: 1\nname: {name}\n{text}")
    made.head.node.sh("cp -a /srv/models/tiny /srv/models/other")
    made.start()
    made.await_serving()
    return made


def pair_settled(pair: Cluster) -> bool:
    """Both nodes have one plan, and it serves."""
    digests = {json.loads(one.node.run("sparkd", "plan", "--json").stdout)["digest"] for one in pair.members}
    return pair.serves() and len(digests) == 1


@pytest.mark.whole
def test_a_pair_changes_by_one_command_on_the_head(pair: Cluster) -> None:
    head = pair.head.node
    with client(pair.head) as got:
        used = head.run("sparkd", "use", "short-pair", timeout=USE_SECONDS)
        assert used.stdout.splitlines()[-1] == "recipe short-pair is in force", used
        assert (context_length(pair.head), pair_settled(pair)) == (256, True)
        wait_for(lambda: head.read("/root/client.log").endswith("200\n" * 3), 30, "the client to be served again")
    assert set(got) == {"200", "refused"}, got
    assert pair.worker.failures() == {}, "a switch is no failure on any node"


@pytest.mark.whole
def test_a_worker_without_the_weights_or_the_image_is_named_and_nothing_changes(pair: Cluster) -> None:
    head, before = pair.head.node, pair.moment()
    refused = head.run("sparkd", "use", "other-pair", check=False)
    assert refused.returncode == 10
    assert "the model other is not in its /srv/models (sparkd model sync other)" in refused.stderr
    rows = {line.split()[0]: line for line in head.run("sparkd", "use", "--list").stdout.splitlines()}
    assert rows["short-pair"].split()[1:] == ["in", "force"]
    assert rows["tiny-cpu-pair"].split()[1:] == ["yes"]
    assert "the model other is not in its" in rows["other-pair"]
    assert "the head chooses" in pair.worker.node.run("sparkd", "use", "short-pair", check=False).stderr
    head.run("docker", "tag", engine_image.NAME, "sparkd-test/second:1")
    refused = head.run("sparkd", "use", "--image", "sparkd-test/second:1", check=False)
    assert refused.returncode == 10
    assert "image sparkd-test/second:1 is not there (sparkd image sync sparkd-test/second:1)" in refused.stderr
    assert pair.moment().agents == before.agents


@pytest.mark.whole
@pytest.mark.parametrize("rank", [0, 1], ids=["head", "worker"])
@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_a_power_cut_of_either_node_ends_in_one_plan_on_both(pair: Cluster, rank: int, moment: str) -> None:
    head = pair.head.node
    ends = chosen(pair.head)
    head.sh(f"setsid sparkd use {'--end' if ends else 'short-pair'} --drain 20s >/root/use.log 2>&1 &")
    wait_for(lambda: reached(pair.head, moment, to_configured=ends), 90, moment)
    pair.members[rank].node.powercut()
    pair.members[rank].node.wait_booted()
    wait_for(lambda: pair_settled(pair), USE_SECONDS, "both nodes to serve in one plan")
    assert context_length(pair.head) in (256, 512)
    text = head.run("cat", SWITCH, check=False).stdout
    assert not text or json.loads(text)["stage"] == "in-force"
