"""The variables of a foreign recipe, as `env` and `secrets` of a recipe of schema 1."""

from collections.abc import Mapping

from sparkd.base.recipes.schema import has_placeholder
from sparkd.base.vllm.args import SECRET_NAME, parse_secret_files, parse_variables
from sparkd.base.vllm.lint.environment import has_node_address
from sparkd.tools.importers.options import OF_RANK, secret_file
from sparkd.tools.importers.source import Source, UnusableRecipeError


def split_environment(source: Source, env: Mapping[str, str], *, many: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Variables, and the files of those variables that are secrets. Raises UnusableRecipeError.

    `many`: several nodes run the recipe, so that what is of one node alone is left out.
    """
    kept: dict[str, str] = {}
    secrets: dict[str, str] = {}
    for name, text in env.items():
        if many and has_node_address(name, text):
            source.note(("env", name), f"env.{name}: left out: {OF_RANK}")
            continue
        try:
            if SECRET_NAME.search(name) and text.lower() not in ("", "0", "1", "true", "false"):
                secrets |= parse_secret_files({name: secret_file(name)})
                source.note(("env", name), f"env.{name}: its value is not taken: put it into {secrets[name]}")
                continue
            parse_variables({name: text})
        except ValueError as error:
            source.note(("env", name), f"env.{name}: left out: {error}")
            continue
        if has_placeholder(text):
            raise UnusableRecipeError(("env", name), f"env.{name}: {text[:60]}: sparkd would put in a value of its own")
        kept[name] = text
    return kept, secrets
