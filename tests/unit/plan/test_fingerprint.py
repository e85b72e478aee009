"""What a plan names is read, and a file that can't be read is named."""

import pytest
from tests.tree import Tree
from tests.unit.plans import HEAD, configured, plan

from sparkd.base.host import Host
from sparkd.base.lib.errors import BlockedError
from sparkd.base.plan import fingerprint


def test_fingerprint_reads_model_and_script(tree: Tree) -> None:
    made = plan(HEAD, configured(engine={"script": "/etc/sparkd/run.sh"}))
    tree.file("/etc/sparkd/run.sh", "exec $@")
    tree.file("/srv/models/m/model.safetensors", "12345")
    host = Host(tree.root)
    assert fingerprint.read_weights(host, made) == (("model.safetensors", "5 bytes"),)
    assert len(fingerprint.hash_user_script(host, made)) == 64
    assert fingerprint.hash_user_script(host, plan(HEAD)) == ""


def test_an_unreadable_file_is_named(tree: Tree) -> None:
    host = Host(tree.root)
    with pytest.raises(BlockedError, match="/srv/models/m can't be read: No such file"):
        fingerprint.read_weights(host, plan(HEAD))
    with pytest.raises(BlockedError, match=r"engine.script /x.sh can't be read"):
        fingerprint.hash_user_script(host, plan(HEAD, configured(engine={"script": "/x.sh"})))


def test_a_command_to_paste_holds_a_folder_with_a_blank_together(tree: Tree) -> None:
    with pytest.raises(BlockedError) as raised:
        fingerprint.read_weights(Host(tree.root), plan(HEAD, configured(engine={"models_dir": "/srv/my models"})))
    assert "sudo ls -lL '/srv/my models/" in raised.value.hint
