"""Configurations as a head sends them, and as a worker keeps them."""

from __future__ import annotations

import json
from typing import Any

from tests.tree import Tree
from tests.unit.cluster_nodes import addresses, settings
from tests.unit.plans import shipped

from sparkd.base.host.files import Files
from sparkd.base.state import shared_config
from sparkd.base.state.shared_config import FILE, make_shared

Document = dict[str, Any]


def good_document(port: int) -> Document:
    """What a head sends, as JSON."""
    shared = make_shared(settings(addresses(2), port), shipped("tiny-cpu-pair"), "", "", Files("/nonexistent"))
    document: Document = json.loads(shared_config.dump(shared))
    return document


def encode(document: Document) -> bytes:
    return json.dumps(document).encode()


def keep_document(tree: Tree, document: bytes) -> None:
    tree.file(f"/node1{FILE.path}", document.decode(), 0o600)
