"""The dashboard and the alerts in config/grafana; tests/packaging has them in a real Prometheus."""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from tests.unit.engine.recorded_logs import METRICS

GRAFANA = Path(__file__).parents[3] / "config/grafana"
PANELS: list[dict[str, Any]] = json.loads((GRAFANA / "sparkd.json").read_text())["panels"]
WIDTH = 24
"""Columns of Grafana's grid."""


def test_the_panels_fill_each_row_without_hole_or_overlap() -> None:
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in PANELS)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    height = 1 + max(y for _, y in cells)
    assert sorted(cells) == [(x, y) for x in range(WIDTH) for y in range(height)]


def test_each_panel_has_an_id_of_its_own() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_each_metric_of_vllm_is_one_that_its_page_has() -> None:
    text = (GRAFANA / "sparkd.json").read_text() + (GRAFANA / "alerts.yaml").read_text()
    named = set(re.findall(r"vllm:\w+", text))
    assert len(named) > 5
    assert named <= set(re.findall(r"^(vllm:\w+)", METRICS, re.MULTILINE))


def test_grafana_reads_the_dashboard_where_the_package_has_it() -> None:
    (provider,) = yaml.safe_load((GRAFANA / "dashboards.yaml").read_text())["providers"]
    assert provider["type"] == "file"
    assert provider["options"]["path"] == "/usr/share/sparkd/grafana"
    (source,) = yaml.safe_load((GRAFANA / "datasource.yaml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    assert source["url"] == "http://127.0.0.1:9090"
