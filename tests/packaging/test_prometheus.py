"""/metrics, the alert rules and the dashboard in real Prometheus, which scrapes the real server and pages of vLLM's."""

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace
from tests.packaging.prometheus import Prometheus, promtool
from tests.unit import page_reports
from tests.unit.engine.recorded_logs import METRICS
from tests.unit.nodes import network

from sparkd.agent.status.http_api import make_handler
from sparkd.agent.status.metrics import render_metrics
from sparkd.agent.status.token_file import TokenFile
from sparkd.base.host.files import Files
from sparkd.base.lib.http_connection import Handler, Request, Response
from sparkd.base.lib.http_server import HttpServer
from sparkd.base.status.figures import HealthReport
from sparkd.base.status.model import Contact, FindingReport, MemoryReport, NodeReport, Phase
from sparkd.base.status.publisher import Published

CHECKOUT = Path(__file__).parents[2]
GRAFANA = CHECKOUT / "config/grafana"
ALERTS, DASHBOARD, EXAMPLE = GRAFANA / "alerts.yaml", GRAFANA / "sparkd.json", GRAFANA / "prometheus.yml"
RULES = {one["alert"]: one for group in yaml.safe_load(ALERTS.read_text())["groups"] for one in group["rules"]}
TOKEN = "0123456789abcdef" * 2
GIB = 1 << 30
PATIENCE_SECONDS = 30.0

HEALTHY = page_reports.serving()
WORKER = HEALTHY.peers[0].report
assert WORKER is not None and HEALTHY.memory is not None and HEALTHY.activity is not None
FAULTS = {
    "person": replace(HEALTHY, phase=Phase.FAILED, cause="needs-person"),
    "person-there": page_reports.pair(HEALTHY, replace(WORKER, phase=Phase.FAILED, cause="configuration")),
    "slow-load": replace(page_reports.loading(), since=page_reports.ago(1100)),
    "degraded": replace(HEALTHY, phase=Phase.DEGRADED),
    "blocked": replace(HEALTHY, phase=Phase.BLOCKED, findings=(FindingReport("unified-memory", "block", "", ""),)),
    "reboot": replace(HEALTHY, phase=Phase.BLOCKED, action="reboot"),
    "silent": page_reports.pair(HEALTHY, WORKER, Contact.SILENT),
    "memory": replace(HEALTHY, memory=MemoryReport(119 * GIB, GIB, (), 512 << 20, "watching")),
    "guard": replace(HEALTHY, memory=replace(HEALTHY.memory, guard="failed")),
    "canary": replace(HEALTHY, health=HealthReport(0.0, 14.2, time.time(), 2, 0)),
    "old-canary": replace(HEALTHY, health=HealthReport(0.0, 14.2, time.time() - 7200, 2, 0)),
    "smoke": replace(HEALTHY, smoke_passed=False),
    "kv": replace(HEALTHY, activity=replace(HEALTHY.activity, kv_cache_use=0.98, waiting=3)),
    "gpu": replace(HEALTHY, findings=(FindingReport("gpu-clocks", "warn", "", ""),)),
}
SAMPLE = re.compile(r"^(vllm:\w+)(\{.*\}) (\S+)$", re.MULTILINE)
ENGINE_FAULTS: dict[str, Callable[[str, str], bool]] = {
    "healthy": lambda name, labels: False,
    "late": lambda name, labels: name.startswith("vllm:time_to_first_token") and "+Inf" not in labels,
    "queue": lambda name, labels: name.startswith("vllm:request_queue_time") and "+Inf" not in labels,
    "slow": lambda name, labels: name.startswith("vllm:inter_token_latency") and "+Inf" not in labels,
    "drafts": lambda name, labels: name.startswith("vllm:spec_decode_num_accepted"),
}
"""Series of vLLM's that stay at 0 in a fault: buckets, but the last, of requests that all take longer than any."""
CAUSED = {
    "SparkdAgentGone": {"gone"},
    "SparkdNeedsPerson": {"person", "person-there"},
    "SparkdNeedsReboot": {"reboot"},
    "SparkdNotServing": {"person", "slow-load", "blocked", "reboot"},
    "SparkdLoadSlow": {"slow-load"},
    "SparkdDegraded": {"degraded"},
    "SparkdPreflightBlocks": {"blocked"},
    "SparkdRestartLoop": {"restarts"},
    "SparkdPeerSilent": {"silent"},
    "SparkdMemoryNearFloor": {"memory"},
    "SparkdMemoryGuardFailed": {"guard"},
    "SparkdSlowCanary": {"canary"},
    "SparkdSmokeFailed": {"smoke"},
    "SparkdKvCacheFull": {"kv"},
    "SparkdGpuSlow": {"gpu"},
    "VllmMetricsGone": {"unread"},
    "VllmFirstTokenSlow": {"late"},
    "VllmQueueLong": {"queue"},
    "VllmTokensSlow": {"slow"},
    "VllmPreempts": {"preempts"},
    "VllmDraftsRejected": {"drafts"},
}


def expressions() -> list[str]:
    """Of the dashboard, for all nodes."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel["targets"]]
    return [one.replace("$instance", ".*").replace("$__rate_interval", "1m") for one in found]


def scrape_config() -> dict[str, Any]:
    """The example of the package, with the token that its comment speaks of."""
    config: dict[str, Any] = yaml.safe_load(re.sub(r"^    # (auth|  cred)", r"    \1", EXAMPLE.read_text(), flags=re.M))
    return config


def engine(fault: str) -> Handler:
    """vLLM's recorded page, with counters that grow from scrape to scrape."""
    scrapes = count(1)

    async def answer(request: Request) -> Response:
        number = next(scrapes)

        def grown(sample: re.Match[str]) -> str:
            name, labels, value = sample.groups()
            grows = 0 if ENGINE_FAULTS.get(fault, ENGINE_FAULTS["healthy"])(name, labels) else number
            by_time = name.endswith(("_total", "_bucket", "_count", "_sum"))
            before = 20.0 if (fault, name) == ("preempts", "vllm:num_preemptions_total") else float(value)
            return f"{name}{labels} {before * grows if by_time else before}"

        return Response(200, SAMPLE.sub(grown, METRICS).encode(), "text/plain; version=0.0.4")

    return answer


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """It has scraped each node for some seconds, by a token."""
    folder = tmp_path_factory.mktemp("prometheus")
    token = folder / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    admits = TokenFile(Files(owner_uid=os.geteuid()), str(token), lambda *_: None).admits
    begun = count(1000)

    def show(report: NodeReport) -> Callable[[], Published]:
        return lambda: Published(report, "")

    served = {"healthy": show(HEALTHY), **{name: show(report) for name, report in FAULTS.items()}}
    served |= {
        "restarts": lambda: Published(replace(HEALTHY, start_time=next(begun) * 100), ""),
        "unread": show(HEALTHY),
    }
    with ExitStack() as stack:
        loop = stack.enter_context(network())
        agents, engines = {"gone": "127.0.0.1:1"}, {"unread": "127.0.0.1:1"}
        pages = [(agents, name, make_handler(published, lambda: 0.0, admits)) for name, published in served.items()]
        pages += [(engines, name, engine(name)) for name in (*ENGINE_FAULTS, "preempts")]
        for targets, name, handle in pages:
            server = HttpServer("127.0.0.1", 0, handle)
            loop.spawn(server.serve())
            targets[name] = f"127.0.0.1:{server.port}"
        config = scrape_config()
        own, theirs = config["scrape_configs"]
        own["authorization"]["credentials_file"] = str(token)
        for job, targets in ((own, agents), (theirs, engines)):  # a name for the fault as the instance
            job["static_configs"] = [{"targets": [at], "labels": {"instance": name}} for name, at in targets.items()]
        config |= {"rule_files": [str(ALERTS)], "global": {"scrape_interval": "1s", "evaluation_interval": "1s"}}
        (folder / "prometheus.yml").write_text(json.dumps(config))
        promtool("check", "config", str(folder / "prometheus.yml"))
        running = stack.enter_context(Prometheus(folder / "prometheus.yml", folder / "data"))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(running.query("count_over_time(up[1h]) > 6")) < len(agents) + len(engines):
            assert time.monotonic() < deadline, "Prometheus scrapes"
            time.sleep(0.3)
        yield running


def test_a_page_follows_the_conventions() -> None:
    pages = [page_reports.serving(), page_reports.loading(), page_reports.broken(), page_reports.booted()]
    for report in (*pages, page_reports.hostile(), *FAULTS.values()):
        assert promtool("check", "metrics", stdin=render_metrics(report, datetime.now(UTC))[0]).strip() == ""


def test_each_node_is_scraped_by_its_token_except_the_one_that_is_gone(prometheus: Prometheus) -> None:
    targets = prometheus.get("targets")["activeTargets"]
    down = {(one["labels"]["job"], one["labels"]["instance"]) for one in targets if one["health"] != "up"}
    assert down == {("sparkd", "gone"), ("vllm", "unread")}


def test_the_example_is_a_configuration_of_prometheus_as_it_stands(tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace("/usr/share/sparkd/grafana/", f"{GRAFANA}/")
    (tmp_path / "prometheus.yml").write_text(text)
    assert "21 rules" in promtool("check", "config", str(tmp_path / "prometheus.yml"))


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_is_caused_by_its_fault_alone(prometheus: Prometheus, alert: str) -> None:
    assert {one["instance"] for one in prometheus.query(RULES[alert]["expr"])} == CAUSED[alert]


def test_alerts_without_a_delay_fire_in_prometheus_itself(prometheus: Prometheus) -> None:
    wanted = {(alert, node) for alert, nodes in CAUSED.items() if "for" not in RULES[alert] for node in nodes}
    found = prometheus.get("alerts")["alerts"]
    firing = [one["labels"] for one in found if one["state"] == "firing"]
    assert {(one["alertname"], one["instance"]) for one in firing} == wanted
    assert all("{{" not in one["annotations"]["summary"] for one in found)


def test_each_alert_has_a_summary_and_a_command() -> None:
    for alert, rule in RULES.items():
        assert rule["labels"]["severity"] in ("critical", "warning"), alert
        assert set(rule["annotations"]) == {"summary", "command"}, alert


@pytest.mark.parametrize("expression", expressions())
def test_a_panel_has_figures(prometheus: Prometheus, expression: str) -> None:
    assert prometheus.query(expression)


def test_dashboard_and_alerts_name_only_metrics_that_a_page_has(prometheus: Prometheus) -> None:
    text = " ".join((*expressions(), *(one["expr"] for one in RULES.values())))
    there = {one["__name__"] for one in prometheus.query('count by (__name__) ({__name__=~"(sparkd_|vllm:).+"})')}
    assert set(re.findall(r"\b(?:sparkd_|vllm:)\w+", text)) <= there


SERIES = {
    "SparkdAgentGone": (("up", "1", "0"),),
    "SparkdNeedsPerson": (('sparkd_failed{cause="needs-person"}', "_", "1"),),
    "SparkdNeedsReboot": (('sparkd_blocked{action="reboot"}', "_", "1"),),
    "SparkdNotServing": (('sparkd_phase{phase="serving"}', "1", "0"),),
    "SparkdLoadSlow": (
        ('sparkd_phase{phase="loading"}', "1", "1"),
        ("sparkd_phase_seconds", "900", "1300"),
        ("sparkd_engine_expected_load_seconds", "600", "600"),
    ),
    "SparkdDegraded": (('sparkd_phase{phase="degraded"}', "0", "1"),),
    "SparkdPreflightBlocks": (
        ('sparkd_phase{phase="blocked"}', "0", "1"),
        ('sparkd_findings{id="disk",level="block"}', "1", "1"),
    ),
    "SparkdPeerSilent": (('sparkd_peer_up{address="10.0.0.2"}', "1", "0"),),
    "SparkdMemoryNearFloor": (
        ("sparkd_memory_available_bytes", "3e9", "1e9"),
        ("sparkd_memory_floor_bytes", "536870912", "536870912"),
    ),
    "SparkdMemoryGuardFailed": (('sparkd_memory_guard{state="unlocked"}', "0", "1"),),
    "SparkdSlowCanary": (("sparkd_canary_seconds", "0.2", "11"), ("sparkd_canary_timestamp_seconds", "600", "600")),
    "SparkdSmokeFailed": (("sparkd_smoke_passed", "1", "0"),),
    "SparkdKvCacheFull": (("sparkd_kv_cache_used_ratio", "0.5", "0.97"), ("sparkd_requests_waiting", "0", "2")),
    "SparkdGpuSlow": (('sparkd_findings{id="gpu-clocks"}', "0", "1"),),
}
"""For each alert its series, with the value before the fault and in it."""
ABSENT = "absent"


def test_a_node_that_ends_and_begins_again_before_it_serves_is_not_serving(tmp_path: Path) -> None:
    """A scrape falls between two processes every 20 minutes."""
    values = " ".join(["1"] * 10 + (["0"] * 19 + ["stale"]) * 3)
    series = {"series": 'sparkd_phase{phase="serving",job="sparkd",instance="spark1"}', "values": values}
    test = {"expr": 'ALERTS{alertname="SparkdNotServing",alertstate="firing"}', "eval_time": "45m"}
    labels = 'alertname="SparkdNotServing",alertstate="firing",job="sparkd",instance="spark1",severity="critical"'
    found = {"labels": f"ALERTS{{{labels}}}", "value": 1}
    suite = {"interval": "1m", "input_series": [series], "promql_expr_test": [{**test, "exp_samples": [found]}]}
    file = tmp_path / "test.yaml"
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [suite]}))
    promtool("test", "rules", str(file))


@pytest.mark.parametrize("alert", [*SERIES, "SparkdRestartLoop", ABSENT])
def test_an_alert_comes_after_its_delay_and_not_before(tmp_path: Path, alert: str) -> None:
    begin, job = 10, {"job": "sparkd", "instance": "spark1"}
    if alert == "SparkdRestartLoop":
        series = {"sparkd_start_time_seconds": " ".join(["7"] * begin + ["8", "9", "10", "11"] + ["11"] * 60)}
        begin += 3
    else:
        series = {
            name: " ".join([before] * begin + [after] * 60)
            for name, before, after in SERIES.get(alert, (("up", "1", "_"),))
        }
    rule = RULES["SparkdAgentGone" if alert == ABSENT else alert]
    delay = int(rule.get("for", "0m").removesuffix("m")) + 4 * (alert == ABSENT)  # a series lasts for five minutes
    delay += 5 * (alert == "SparkdNotServing")  # what it looks back
    labels = {**rule["labels"], **job}
    for key, value in re.findall(r'(\w+)="([^"]*)"', " ".join(series)):
        labels |= {} if key == "phase" and alert != "SparkdDegraded" else {key: value}
    if alert == ABSENT:
        del labels["instance"]
    annotations = {
        key: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels.get(found[1], ""), text)
        for key, text in rule["annotations"].items()
    }
    named = [
        {
            "series": name.rstrip("}") + ("," if "{" in name else "{") + 'job="sparkd",instance="spark1"}',
            "values": values,
        }
        for name, values in series.items()
    ]
    name = rule["alert"]
    tests = [
        {"eval_time": f"{begin + delay - 1}m", "alertname": name, "exp_alerts": []},
        {
            "eval_time": f"{begin + delay + (alert == ABSENT)}m",
            "alertname": name,
            "exp_alerts": [{"exp_labels": labels, "exp_annotations": annotations}],
        },
    ]
    run_rules(tmp_path, named, tests)


def run_rules(folder: Path, series: Sequence[object], expected: Sequence[object]) -> None:
    suite = {"interval": "1m", "input_series": series, "alert_rule_test": expected}
    file = folder / "test.yaml"
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [suite]}))
    promtool("test", "rules", str(file))


GROWS, STAYS = "0x9 0+60x200", "0x210"
ENGINE_SERIES = {
    "VllmMetricsGone": {'up{job="vllm"}': "1x9 0x200", 'sparkd_phase{job="sparkd",phase="serving"}': "1x210"},
    "VllmFirstTokenSlow": {'vllm:time_to_first_token_seconds_bucket{le="40.0"}': STAYS},
    "VllmQueueLong": {'vllm:request_queue_time_seconds_bucket{le="15.0"}': STAYS},
    "VllmTokensSlow": {'vllm:inter_token_latency_seconds_bucket{le="2.5"}': STAYS},
    "VllmPreempts": {"vllm:num_preemptions_total": GROWS},
    "VllmDraftsRejected": {
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}': STAYS,
        "vllm:spec_decode_num_drafts_total": GROWS,
    },
}
"""For each alert its series, a minute a value. The fault begins after ten minutes."""


@pytest.mark.parametrize("alert", ENGINE_SERIES)
def test_an_alert_of_the_engine_comes_after_its_delay_and_not_before(tmp_path: Path, alert: str) -> None:
    series = dict(ENGINE_SERIES[alert])
    if (bucket := next(iter(series))).partition("{")[0].endswith("_bucket"):
        series[re.sub(r'le="[^"]*"', 'le="+Inf"', bucket)] = GROWS
    rule, own = RULES[alert], {"job": "vllm", "instance": "spark1"}
    named = []
    for name, values in series.items():
        metric, _, labels = name.rstrip("}").partition("{")
        known = ([labels] if labels else []) + ([] if "job=" in labels else ['job="vllm"'])
        labels = ",".join([*known, 'instance="spark1"'])
        named.append({"series": f"{metric}{{{labels}}}", "values": values})
    summary = rule["annotations"]["summary"].replace("{{ $labels.instance }}", "spark1")
    firing = {"exp_labels": {**rule["labels"], **own}, "exp_annotations": {**rule["annotations"], "summary": summary}}
    due = 10 + (alert != "VllmMetricsGone") + int(rule.get("for", "0m").removesuffix("m"))
    tests = [
        {"eval_time": f"{due - 1}m", "alertname": alert, "exp_alerts": []},
        {"eval_time": f"{due}m", "alertname": alert, "exp_alerts": [firing]},
    ]
    run_rules(tmp_path, named, tests)
