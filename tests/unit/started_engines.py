"""Texts that start vLLM as people do, such as a docker line or a compose file, and the recipe that an import makes."""

import os
from pathlib import Path
from typing import NamedTuple

from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.schema import Recipe
from sparkd.tools.importers.bundle import Place
from sparkd.tools.importers.convert import import_forms
from sparkd.tools.importers.forms import read_form

IMAGE = "vllm/vllm-openai:v0.32.0"
LINE = f"docker run --gpus all {IMAGE} --model org/m"
RUN = f"docker run {IMAGE} --model org/m --port $P"
COMPOSE = f"services:\n  vllm:\n    image: {IMAGE}\n    command: --model org/m\n"
UNIT = "[Unit]\nDescription=x\n[Service]\n"
SECRET = "wq8Zk2Vt9Xs4Lp7Rb3Nd"


class Imported(NamedTuple):
    recipe: Recipe
    """As it is read back from `text`."""
    text: str
    notes: list[str]
    """Without the path of the file."""
    missing: list[str]
    """The notes about what keeps the recipe from an endpoint."""
    steps: tuple[str, ...]
    """The commands to one."""


def imported(folder: Path, *texts: str, image: str = "", service: str = "", **overrides: str) -> Imported:
    """Import texts as one recipe. Each is a file of a folder of its own: 0/given, 1/given."""
    forms = []
    for number, text in enumerate(texts):
        path = folder / f"{number}" / "given"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        form = read_form(text, path, overrides, service, owner=os.getuid())
        assert form, "the form is recognised"
        forms.append(form)
    result = import_forms(forms, (), Place(image=image))
    written = folder / f"{result.name}.yaml"
    written.write_text(result.text)
    notes, missing = ([note.partition(": ")[2] for note in lines] for lines in (result.notes, result.missing))
    return Imported(load_recipe(str(written), []).recipe, result.text, notes, missing, result.steps)
