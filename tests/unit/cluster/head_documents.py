"""Configurations as a head sends them, and as a worker reads and keeps them."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from tests.tree import Tree
from tests.unit.cluster_nodes import AgentUnderTest, MemoryActions, addresses, settings, until_with
from tests.unit.nodes import Node, report
from tests.unit.plans import shipped
from tests.unit.verdicts import present

from sparkd.agent.actions import Actions
from sparkd.agent.daemon.head_config import check_head
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


def publish(head: Node, document: bytes) -> str:
    """Serve a document, and a report that names its digest, which is returned."""
    digest = sha256(document).hexdigest()
    head.loop.call(head.peer_api.publish_document, "/config", document)
    head.publish(report(0, config_digest=digest))
    return digest


def send(head: Node, worker: AgentUnderTest, document: bytes) -> None:
    """Serve a document until the worker has read the report that names it, and let it look at that."""
    digest = publish(head, document)
    follower = present(worker.agent.follower)
    until_with(lambda: (living := follower.head.status.living) and living.config_digest == digest, worker)
    check_head(worker.agent)


def written_files(actions: Actions) -> dict[str, str]:
    """Contents of the files that an agent has written, by name."""
    assert isinstance(actions, MemoryActions)
    return actions.written
