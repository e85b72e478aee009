"""`sparkd config`: print or check the settings. No secret is printed."""

import argparse
import os
from collections.abc import Callable, Iterator
from functools import partial

from sparkd.agent.daemon.notify_delivery import read_url
from sparkd.agent.preflight.hooks import check_program
from sparkd.agent.status.token_file import read_token
from sparkd.base.cluster import auth, following, membership
from sparkd.base.cluster.membership import NodeContext
from sparkd.base.config import LoadedSettings, Settings, load_with_origins, reference
from sparkd.base.host import Host
from sparkd.base.host.ownership import read_private
from sparkd.base.lib.errors import ConfigError, SparkdError
from sparkd.base.plan.fingerprint import hash_user_script, read_secrets
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.recipes.loader import LoadedRecipe, load_recipe
from sparkd.base.recipes.lookup import NOT_SET_UP, SET_UP_HINT, recipe_folders
from sparkd.base.state.shared_config import overridden_keys
from sparkd.base.state.vllm_tables import find_recipe_table
from sparkd.tools.cli import console
from sparkd.tools.cli.parser import add_action
from sparkd.tools.node.recipe_lint import lint


def add_config(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = add_action(actions, "show", "print the settings in force, each with the file or variable that set it")
    show.set_defaults(run=show_settings)
    form = show.add_mutually_exclusive_group()
    form.add_argument("--default", action="store_true", help="print the commented default file instead")
    form.add_argument("--json", action="store_true", help="print one JSON object")
    check = add_action(
        actions, "check", "say what is wrong with the settings, their recipe and its plan, or that they are good"
    )
    check.set_defaults(run=check_settings)
    console.add_json(check)


def show_settings(args: argparse.Namespace) -> None:
    if args.default:
        print(reference.default_file(), end="")
    else:
        loaded = following.load_effective(os.environ, Host())
        print(reference.show_json(loaded) if args.json else reference.show(loaded))


def check_settings(args: argparse.Namespace) -> None:
    """Check all that would end a start with 78, each file that settings name, and what `recipe check` judges.

    Nothing is checked that depends on the node's state. Raises ConfigError.
    """
    lines = list(_check_settings(Host(), load_with_origins(os.environ)))
    if args.json:
        console.show_json(lines=lines)
    else:
        print("\n".join(lines))


def _check_settings(host: Host, loaded: LoadedSettings) -> Iterator[str]:
    """Yield lines about what is good, and warnings. Raises ConfigError with all that is wrong."""
    from sparkd.agent.preflight.runner import check_ids

    settings, is_root = loaded.settings, not os.geteuid()
    load_own_recipe = partial(load_recipe, settings.engine.recipe, recipe_folders())
    private_readers = _find_private_readers(settings, host)
    is_set_up = bool(settings.engine.recipe or settings.cluster.follow_head)
    read_node = partial(membership.make_context if is_set_up else membership.find_place, settings, host)
    # The recipe is a step of its own: where the node's place is wrong, no plan would read it.
    recipe_steps = [load_own_recipe] if settings.engine.recipe and not settings.cluster.follow_head else []
    private_steps = private_readers.values() if is_root else ()
    programs_step = partial(_check_programs, settings, host)
    _run_steps(partial(check_ids, settings.preflight), *recipe_steps, read_node, *private_steps, programs_step)
    node = membership.make_context(settings, host) if is_set_up else None
    warnings = _check_plan(node, load_own_recipe, host) if node else []
    yield f"settings are good ({', '.join(str(path) for path in loaded.files) or 'no file'})"
    if node is None:
        yield f"{NOT_SET_UP}\nnext: {SET_UP_HINT}"
        return
    yield _describe_recipe(node, load_own_recipe)
    yield from warnings
    yield from _warn_of_overridden(node, loaded)
    private_files = (*private_readers, *(secret.file for secret in node.plan.secrets), node.plan.user_script)
    names = "" if is_root else ", ".join(filter(None, private_files))
    if names:
        yield f"not looked at, since only root can read them: {names}\nnext: sudo sparkd config check"


def _describe_recipe(node: NodeContext, load_own_recipe: Callable[[], LoadedRecipe]) -> str:
    origin = f"of the head {node.plan.node.head_address}" if node.followed else load_own_recipe().files[0]
    return f"recipe {node.recipe.name} is good ({origin})"


def _warn_of_overridden(node: NodeContext, loaded: LoadedSettings) -> Iterator[str]:
    for name in overridden_keys(loaded.origins) if node.followed else ():
        yield f"{name} in {loaded.origins[name]} has no effect, the head decides it: take it out"


def _check_plan(node: NodeContext, load_own_recipe: Callable[[], LoadedRecipe], host: Host) -> list[str]:
    """Warnings about the recipe and the files that the plan names. Raises ConfigError."""
    is_root = not os.geteuid()
    warnings: list[str] = []
    steps: list[Callable[[], object]] = []
    if node.followed is None:
        steps.append(lambda: warnings.extend(_lint_recipe(load_own_recipe(), node.settings, host)))
    if is_root:
        steps += [partial(read_secrets, host.files, node.plan), partial(hash_user_script, host, node.plan)]
    _run_steps(*steps)
    return [*warnings, *(_warn_of_open_secrets(node.plan, host) if is_root else ())]


def _warn_of_open_secrets(plan: LaunchPlan, host: Host) -> Iterator[str]:
    """Warn of secrets that others than root may read. An engine starts with them all the same."""
    for secret in plan.secrets:
        try:
            read_private(host.files, secret.file, 64 << 10)
        except ConfigError as error:
            yield f"warning: secret {secret.name}: {error.reason}\nhint: {error.hint}"


def _find_private_readers(settings: Settings, host: Host) -> dict[str, Callable[[], object]]:
    """The files that root alone may read, each with the call by which the agent reads it."""
    key_file = settings.cluster.key_file if len(settings.cluster.nodes) > 1 else ""
    readers = (
        (key_file, auth.read_keys),
        (settings.observe.token_file, read_token),
        (settings.notify.webhook_file, read_url),
    )
    return {path: partial(reader, host.files, path) for path, reader in readers if path}


def _check_programs(settings: Settings, host: Host) -> None:
    """Check the programs that root runs, and that a start does not need. Raises ConfigError."""
    power = next(iter(settings.supervise.power_command), "")
    for key, path in (("supervise.power_command", power), ("notify.command", settings.notify.command)):
        if path and (program := check_program(host.files, path)).problem:
            raise ConfigError(f"{key} would not be run: {program.problem}", program.hint)


def _lint_recipe(loaded: LoadedRecipe, settings: Settings, host: Host) -> list[str]:
    """Warnings as of `recipe check`. Its errors raise ConfigError, unless the settings let them pass as warnings."""
    vllm = find_recipe_table(host, loaded.recipe, settings.engine.env)
    errors, warnings = lint(loaded, host=host, vllm=vllm)
    if errors and "plan-lint" not in (*settings.preflight.skip, *settings.preflight.downgrade):
        raise ConfigError("\n".join(errors))
    return [f"warning: {warning}" for warning in (*errors, *warnings)]


def _run_steps(*steps: Callable[[], object]) -> None:
    """Run every step, also after one that fails. Raises one ConfigError with the reasons and hints of all."""
    reasons, hints = dict[str, None](), dict[str, None]()
    for step in steps:
        try:
            step()
        except SparkdError as error:
            reasons[error.reason] = None
            if error.hint:
                hints[error.hint] = None
    if reasons:
        raise ConfigError("\n".join(reasons), "\n".join(hints))
