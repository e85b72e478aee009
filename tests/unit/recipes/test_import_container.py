"""A container of this machine's docker becomes a recipe, which takes its place."""

import pytest
from tests.tree import Tree
from tests.unit.started_engines import IMAGE, SECRET

from sparkd.base.host import Host
from sparkd.base.lib.errors import ConfigError
from sparkd.base.recipes.loader import load_recipe
from sparkd.tools.importers.bundle import Place
from sparkd.tools.importers.convert import Conversion, import_forms
from sparkd.tools.importers.forms import read_container_form

DETAIL = {
    "Id": "a" * 64, "Image": "sha256:1",
    "Config": {"Image": IMAGE, "Entrypoint": ["vllm", "serve"], "Cmd": ["org/m", "--seed", "1"],
               "Env": ["PATH=/bin", "A=1", f"HF_TOKEN={SECRET}"], "User": "1000:1000"},
    "HostConfig": {"NetworkMode": "bridge", "IpcMode": "private", "ShmSize": 1 << 30, "Memory": 0, "Privileged": False,
                   "Binds": ["/srv/x:/x:ro", "/:/host"], "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}],
                   "Devices": [{"PathOnHost": "/dev/infiniband", "PathInContainer": "/dev/infiniband"}],
                   "DeviceRequests": [{"Driver": "nvidia"}], "CapAdd": None, "SecurityOpt": ["label=disable"],
                   "Tmpfs": {"/tmp": "size=1g", "/t": ""}, "CapDrop": ["ALL"], "ReadonlyRootfs": True,
                   "GroupAdd": ["video"], "PidMode": "host", "ExtraHosts": ["a:1.2.3.4"], "CpusetCpus": "",
                   "PortBindings": {"8000/tcp": [{"HostIp": "", "HostPort": "9000"},
                                                 {"HostIp": "::1", "HostPort": "9001"}], "7/tcp": None}},
}  # fmt: skip


@pytest.fixture
def machine(tree: Tree) -> Tree:
    """A machine with the container `vllm`."""
    tree.dockerd()
    tree.docker("/containers/vllm/json", DETAIL)
    tree.docker("/images/sha256:1/json", {"Config": {"Env": ["PATH=/bin"], "Entrypoint": ["vllm", "serve"]}})
    tree.docker(f"/images/{IMAGE}/json", {"Id": "sha256:1"})
    return tree


def imported(machine: Tree, image: str = "") -> Conversion:
    return import_forms([read_container_form("vllm", Host(machine.root))], (), Place(image=image))


def test_the_settings_of_a_container_are_taken(machine: Tree) -> None:
    written = machine.root / "m.yaml"
    written.write_text(imported(machine).text)
    recipe = load_recipe(str(written), []).recipe
    assert recipe.args == {"seed": 1, "port": 9000}
    assert recipe.env == {"A": "1"}
    assert [*recipe.secrets] == ["HF_TOKEN"]
    assert recipe.container.shm_bytes == 1 << 30
    assert [volume.target for volume in recipe.container.volumes] == ["/x"]


def test_what_a_recipe_does_not_take_of_a_container_is_noted_without_its_secret(machine: Tree) -> None:
    conversion = imported(machine)
    assert {note.removeprefix("vllm: line 1: ").partition(": left out")[0] for note in conversion.notes} == {
        "--volume /:/host", "--user 1000:1000", "--tmpfs /tmp:size=1g", "--tmpfs /t", "--cap-drop ALL",
        "--read-only true", "--group-add video", "--pid host", "--add-host a:1.2.3.4", "--publish [::1]:9001:8000",
        "HF_TOKEN: its value is not taken: put it into /etc/sparkd/hf_token",
    }  # fmt: skip
    assert SECRET not in conversion.text + "".join(conversion.notes)


def test_the_container_is_stopped_before_the_check_that_needs_its_port(machine: Tree) -> None:
    steps = imported(machine).steps
    stop = steps.index("sudo docker update --restart no vllm && sudo docker stop vllm")
    assert steps[stop + 1] == "sudo sparkd preflight --dry-run"


def test_only_another_image_than_the_containers_has_to_be_fetched(machine: Tree) -> None:
    assert not any("docker pull" in step for step in imported(machine).steps)
    assert any("mine:1: no registry has it" in note for note in imported(machine, image="mine:1").missing)


def test_a_name_that_another_image_has_now_is_noted(machine: Tree) -> None:
    machine.docker(f"/images/{IMAGE}/json", {"Id": "sha256:2"})
    assert any(
        f"image: {IMAGE} is another image now than the container's 1," in note for note in imported(machine).notes
    )


def test_a_container_that_docker_has_not_is_refused(machine: Tree) -> None:
    with pytest.raises(ConfigError, match="docker has no container other"):
        read_container_form("other", Host(machine.root))


def test_without_docker_the_refusal_says_so(machine: Tree) -> None:
    (machine.root / "run/docker.pid").unlink()
    with pytest.raises(ConfigError, match="docker is not running on this node"):
        read_container_form("vllm", Host(machine.root))
