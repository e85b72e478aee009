"""What vLLM 0.32.0 answers to GET /metrics."""

from pathlib import Path

LOGS = Path(__file__).parent / "engine-logs"
RECORDED = (LOGS / "metrics.txt").read_text() + (LOGS / "metrics-drafts.txt").read_text()
"""The page of an engine without a drafter; then what its class `SpecDecodingProm` adds with one, of three tokens, which
was run alone.
"""
