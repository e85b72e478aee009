"""The commands from an imported recipe to an endpoint, which are only printed."""

import json
import shlex
from collections.abc import Iterator

from sparkd.base.config.types import WRITABLE
from sparkd.base.plan.allowed import URGENT_LIMITS
from sparkd.base.recipes.additions import VERBS
from sparkd.base.recipes.reach import DEVICES, given_paths
from sparkd.base.recipes.schema import Recipe
from sparkd.base.vllm.args import API_KEY
from sparkd.base.vllm.container_paths import is_below
from sparkd.tools.importers.bundle import ADMINISTRATORS, Bundle, is_published

_SETTINGS, _ON_WORKERS = "/etc/sparkd/conf.d/90-recipe.toml", "/etc/sparkd/conf.d/90-allow.toml"
_ON_OTHERS = "  # on each other node"
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def list_steps(bundle: Bundle) -> Iterator[str]:
    """The commands from here to a served token, in order."""
    recipe, place, is_cluster = bundle.recipe, bundle.place, bundle.recipe.nodes.min > 1
    path = str(place.folder / f"{recipe.name}.yaml")
    if place.write_folder != place.folder:
        beside = {name.partition("/")[0] for name in (f"{recipe.name}.yaml", *bundle.files)}
        written = sorted(f"{place.write_folder}/{name}" for name in beside)
        copy = shlex.join(["sudo", "cp", "-r", *written, f"{place.folder}/"])
        yield f"sudo mkdir -p {place.folder} && {copy}"
    yield from _list_image_steps(bundle, path)
    yield from _list_model_steps(bundle, path)
    if is_cluster and place.folder != ADMINISTRATORS:  # a cluster names its recipe without a path
        yield shlex.join(["sudo", "install", "-D", "-m", "644", path, str(ADMINISTRATORS / f"{recipe.name}.yaml")])
    yield shlex.join(["sparkd", "recipe", "check", path])
    recipe_word = recipe.name if is_cluster or place.folder == ADMINISTRATORS else path
    yield _settings_command(_SETTINGS, "[engine]", f"recipe = {json.dumps(recipe_word, ensure_ascii=False)}")
    yield "sparkd config check"
    if is_cluster:
        yield from _list_node_steps(bundle)
    yield "sudo sparkd units install"
    if bundle.container:
        yield f"sudo docker update --restart no {bundle.container} && sudo docker stop {bundle.container}"
    yield "sudo sparkd preflight --dry-run"
    if is_cluster:
        yield f"sudo systemctl enable --now sparkd-worker{_ON_OTHERS}"
    start = "sudo systemctl enable sparkd-head && sudo systemctl restart sparkd-head"  # it may run already
    yield f"{start}  # where this node was a worker, first: sudo systemctl disable --now sparkd-worker"


def _list_image_steps(bundle: Bundle, path: str) -> Iterator[str]:
    """Commands that pull or build the image. `path`: of the recipe."""
    if not bundle.is_here:
        if is_published(bundle.base):
            pull = shlex.join(["sudo", "docker", "pull", bundle.base])
            yield f"{pull}  # or: {bundle.build}" if bundle.build else pull
        elif bundle.build:
            yield bundle.build
    if bundle.recipe.image.ref != bundle.base:
        yield shlex.join(["sudo", "sparkd", "image", "build", path])


def _list_model_steps(bundle: Bundle, path: str) -> Iterator[str]:
    """Commands that write secrets and download models, which may need a token. `path`: of the recipe."""
    secrets, pull = bundle.recipe.secrets, ["sudo", "sparkd", "model", "pull"]
    shared = _list_shared_secrets(bundle.recipe) if bundle.recipe.nodes.min > 1 else {}
    for name, file in secrets.items():
        where = "; on each node" if name in shared else ""
        yield f"sudo install -m 600 /dev/stdin {file}  # its value, then Ctrl-D{where}"
    token = next((["--token-file", secrets[name]] for name in _TOKENS if name in secrets), [])
    if bundle.recipe.model.repo:
        yield shlex.join([*pull, path, *token])
    for repo, revision in bundle.drafts.items():
        to = ["--to", f"{bundle.place.models}/{repo.rpartition('/')[2]}"]
        yield shlex.join([*pull, repo, *to, *(["--revision", revision] if revision else []), *token])


def _list_node_steps(bundle: Bundle) -> Iterator[str]:
    """Commands that set up the other nodes. The recipe's file permits its image; the head sends what it mounts."""
    recipe, model = bundle.recipe, bundle.recipe.model
    yield f"sudo sparkd init --nodes {recipe.nodes.min}  # here, the head: shows a code, waits ten minutes"
    yield f"sudo sparkd init --join{_ON_OTHERS}, meanwhile: enter the code"
    file = ADMINISTRATORS / f"{recipe.name}.yaml"
    yield f"scp {file} OTHER:  # for each other node, by your login there"
    yield f"sudo install -D -m 644 ~/{file.name} {file}{_ON_OTHERS}: permits its image"
    if lines := [*_list_secret_settings(recipe), *_list_permissions(bundle)]:
        yield _settings_command(_ON_WORKERS, *lines) + _ON_OTHERS
    yield "sparkd image sync  # --user root, where yours may not use docker there"
    for name in (model.path, *(repo.rpartition("/")[2] for repo in bundle.drafts)):
        yield shlex.join(["sparkd", "model", "sync", name]) + "  # --user root, where yours may not write there"


def _list_shared_secrets(recipe: Recipe) -> dict[str, str]:
    """Files of the secrets that each node needs: the head alone serves, so a worker needs none of the API's key."""
    return {name: file for name, file in recipe.secrets.items() if name != API_KEY}


def _list_secret_settings(recipe: Recipe) -> Iterator[str]:
    """The section by which a worker finds its own files: its head sends the names."""
    if secrets := _list_shared_secrets(recipe):
        yield "[engine.secrets]"
        yield from (f"{name} = {json.dumps(file, ensure_ascii=False)}" for name, file in secrets.items())


def _list_permissions(bundle: Bundle) -> Iterator[str]:
    """The section of what a worker lets its head's containers have."""
    container, sent = bundle.recipe.container, {f"{bundle.place.folder}/{name}" for name in bundle.files}
    mounts = [
        path + WRITABLE if written else path
        for key, path, written in given_paths(container)
        if path not in sent and not (key == DEVICES and is_below(path, VERBS))
    ]
    is_urgent = any(name in container.limits for name in URGENT_LIMITS)
    if mounts or container.privileged or is_urgent:
        yield "[cluster.allow]"
    if container.privileged or is_urgent:
        yield "privileged = true"
    if mounts:
        yield f"mounts = {json.dumps(mounts, ensure_ascii=False)}"


def _settings_command(file: str, *lines: str) -> str:
    return shlex.join(["printf", r"%s\n", *lines]) + f" | sudo install -D -m 644 /dev/stdin {file}"
