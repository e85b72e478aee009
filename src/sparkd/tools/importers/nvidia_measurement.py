"""The measurement beside a recipe of NVIDIA's catalogue: it names the image by digest and the model by revision."""

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from sparkd.base.host.docker_image import split_name
from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.text_file import read_file
from sparkd.base.recipes.yaml import YamlError, parse_as_pyyaml
from sparkd.base.vllm.releases import name_release
from sparkd.tools.importers.options import Launch, redact
from sparkd.tools.importers.source import Source, as_mapping

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REVISION = re.compile(r"[0-9a-f]{40}")
_MEASUREMENT = "performance.yaml"


def is_measurement(path: Path) -> bool:
    """Whether the file is a measurement of a recipe beside it, and no recipe itself."""
    if path.name != _MEASUREMENT or not path.with_name("recipe.yaml").exists():
        return False
    try:
        return "profiles" in parse_as_pyyaml(read_file(path)).data
    except YamlError:  # a note of the recipe reports it
        return True
    except ConfigError:
        return False


def read_measurement(source: Source) -> Mapping[str, object]:
    """Content of performance.yaml beside the recipe; empty without one, and where it measured another recipe.

    Raises ConfigError where a file can't be read.
    """
    if source.path is None:
        return {}
    try:
        measured = as_mapping(parse_as_pyyaml(read_file(source.path.with_name(_MEASUREMENT))).data)
    except FileNotFoundError:
        return {}
    except YamlError as error:
        source.note((), f"{_MEASUREMENT}: not read: {error}")
        return {}
    _licence, begin, rest = read_file(source.path).replace("\r\n", "\n").partition("schema_version")
    digest = sha256((begin + rest).encode()).hexdigest()
    if str(measured.get("recipe_sha256") or digest).lower() == digest:
        return measured
    what = "its digest of the image, revision of the model and figures are left out"
    source.note((), f"{_MEASUREMENT}: was measured with another text of this recipe (recipe_sha256): {what}")
    return {}


def pin_image(source: Source, launch: Launch, software: Mapping[str, object]) -> tuple[str, str]:
    """The image, by its digest if that was measured, and its release where the name has none."""
    digest, image = str(software.get("runtime_revision")), str(source.mapping("runtime").get("image") or "")
    if launch.image not in (image, "$IMAGE"):
        source.note(("runtime",), f"runtime.image: {image}: is taken, and not {launch.image} of its setup_command")
    if _DIGEST.fullmatch(digest):
        release = name_release(image) or name_release(str(software.get("backend_version")))
        return f"{split_name(image)[0]}@{digest}", release
    if "@" not in image:
        source.note(("runtime",), f"runtime.image: {image}: no performance.yaml has its digest, and the tag may move")
    return image, ""


def pin_model(source: Source, command: str, revision: str) -> str:
    """The model's measured revision; empty without one. Models that nothing pins are noted."""
    checkpoint, is_measured = as_mapping(source.document.data.get("checkpoint")), _REVISION.fullmatch(revision)
    is_pinned = is_measured or re.search(rf"--revision[\s=]+{_REVISION.pattern}", command)
    model = checkpoint.get("target_label") or source.mapping("serve").get("api_model") or source.text("model")
    for name in (None if is_pinned else model, checkpoint.get("draft_label")):
        if name:
            text = f"checkpoint: {redact(str(name))[:200]}: no performance.yaml has its revision, and it may change"
            source.note(("checkpoint",), text)
    return revision if is_measured else ""


def read_figures(measured: Mapping[str, object]) -> dict[str, object]:
    """Tokens a second by the number of parallel requests, in the form of a recipe's `expect`."""
    figures: dict[str, dict[str, object]] = {}
    profiles = measured.get("profiles")
    for profile in map(as_mapping, profiles if isinstance(profiles, list) else []):
        parallel, results = as_mapping(profile.get("workload")).get("concurrency"), as_mapping(profile.get("results"))
        for name in ("decode_tokens_per_second", "prefill_tokens_per_second"):
            figure = results.get(f"{name}_mean")
            if isinstance(parallel, int) and isinstance(figure, int | float) and 0 < figure < 1e9:
                figures.setdefault(name, {})[str(parallel)] = figure
    return dict(figures)
