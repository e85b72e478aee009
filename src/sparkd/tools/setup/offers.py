"""Offers of `sparkd init` for a safe endpoint: a key for the API, and messages to people."""

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from shlex import quote
from typing import NamedTuple
from urllib.parse import urlsplit

from sparkd.base.cluster.endpoint import is_local
from sparkd.base.config import Settings
from sparkd.base.host.ownership import read_private
from sparkd.base.lib.errors import ConfigError, UsageError
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.state import known_good
from sparkd.base.vllm.args import API_KEY
from sparkd.tools.setup.cluster_key import SecretFile
from sparkd.tools.setup.node_files import NodeFiles, Values

FOLDER = "/etc/sparkd"
KEY_FILE, WEBHOOK_FILE = f"{FOLDER}/api.key", f"{FOLDER}/webhook"
KEY_PATTERN = f"{FOLDER}/*api*key"
"""Paths at which a key is made. No key is made elsewhere: a foreign recipe could name another program's file."""
TEMPLATES = {"slack.com": "slack", "discord.com": "discord", "discordapp.com": "discord"}
"""Template of messages by the receiver's domain. Any other is taken for ntfy, which people host themselves."""


class Draft(NamedTuple):
    """Settings and files to write."""

    values: Values
    files: tuple[SecretFile, ...] = ()


NOTHING = Draft({})


@dataclass(frozen=True)
class Offers:
    """The offers for one node, with the recipe's plan, if it has one."""

    files: NodeFiles
    plan: LaunchPlan | None
    prompt: Callable[[str], str] | None
    """Returns a person's answer to a question; None where nobody answers."""

    def api_key(self, wish: bool | None) -> Draft:
        """A key for the API by the option `wish`; without it, where a person agrees.

        Raises ConfigError for an unfit file at its path.
        """
        if (plan := self.plan) is None:
            return NOTHING
        plan_file = next((secret.file for secret in plan.secrets if secret.name == API_KEY), "")
        path = plan_file or KEY_FILE
        is_in_settings = path == self.files.load().settings.engine.secrets.get(API_KEY)
        if not (is_in_settings or PurePosixPath(path).match(KEY_PATTERN)):
            return NOTHING
        if not (self._wants_key(plan, plan_file) if wish is None else wish):
            return NOTHING
        values: Values = {} if plan_file else {("engine", "secrets"): {API_KEY: path}}
        if (key := self._read(path)) is None:
            return Draft(values, (SecretFile(path, f"sk-{secrets.token_urlsafe(32)}\n"),))
        if not key:
            raise ConfigError(f"{path} is empty: vLLM would serve without a key", f"sudo rm {quote(path)}")
        return Draft(values)

    def _wants_key(self, plan: LaunchPlan, plan_file: str) -> bool:
        """Whether a person agrees to a key. No question where clients may have used the API without one.

        `plan_file`: the key's file by the plan; empty where it has none.
        """
        host, port, may_have_served = self.files.host, plan.api_port, True
        if self.prompt is None or is_local(plan):
            return False
        with suppress(OSError, ValueError):  # a node that can't be read may have served
            is_listening = port in {listener.port for listener in host.listeners()}
            may_have_served = bool(is_listening or host.owner() or host.files.exists(known_good.FILE.path))
        is_decided = host.files.exists(plan_file) if plan_file else may_have_served
        if is_decided:
            return False
        question = f"Other machines reach the API on port {port}. Make a key for it, {plan_file or KEY_FILE}? [Y/n] "
        return self.prompt(question).strip().lower() in ("", "y", "yes")

    def messages(self, file: str) -> Draft:
        """Messages to the URL in `file`, or without one to a URL that is typed. Raises ConfigError, UsageError."""
        loaded, path = self.files.load(), file or WEBHOOK_FILE
        url = (self._read(file) or "") if file else self._prompt_url(loaded.settings)
        if not (url or file):
            return NOTHING
        from sparkd.base.lib.webhook import check_url  # here: it imports the library that sends

        try:
            check_url(url)
        except ValueError as error:
            raise UsageError(f"what is to be in {path} {error}", "it stands there alone, on one line") from None
        values: Values = {("notify", "webhook_file"): path}
        if "notify.template" not in loaded.origins:
            domain = (urlsplit(url).hostname or "").split(".")[-2:]
            values["notify", "template"] = TEMPLATES.get(".".join(domain), "ntfy")
        if file:
            return Draft(values)
        return Draft(values, (SecretFile(path, f"{url}\n", description="the URL that you typed"),))

    def _prompt_url(self, settings: Settings) -> str:
        """The URL that a person types; empty where messages have a receiver already, or a file for a URL exists."""
        has_file = PurePosixPath(WEBHOOK_FILE).name in self.files.host.files.names_if_any(FOLDER)
        if self.prompt is None or settings.notify.configured_ways or has_file:
            return ""
        return self.prompt("URL for messages to you, of ntfy, Slack or Discord [none]: ").strip()

    def _read(self, path: str) -> str | None:
        """The text of a file that only root can read; None without a file. Raises ConfigError for any other file."""
        with suppress(FileNotFoundError):
            content = read_private(self.files.host.files, path, 4096, os.geteuid()).content
            return content.decode("utf-8", "replace").strip()
        return None
