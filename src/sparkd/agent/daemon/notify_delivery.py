"""Delivers a message to people by one way: the webhook, or the operator's own program."""

import os
import time
from shlex import quote

from sparkd.agent.daemon.operator_program import DEADLINE_SECONDS, ENVIRONMENT, first_line, run_program
from sparkd.agent.preflight.hooks import check_program
from sparkd.agent.status.notice_formats import as_json, render
from sparkd.base.config import Notify
from sparkd.base.host.files import Files
from sparkd.base.host.ownership import read_private
from sparkd.base.lib.errors import ConfigError, LaunchError
from sparkd.base.lib.webhook import check_url, post
from sparkd.base.status.notices import Notice


def deliver(
    files: Files, settings: Notify, way: str, notice: Notice, program_seconds: float = DEADLINE_SECONDS
) -> None:
    """Send a message. Raises LaunchError where it may work later, RefusedError where the receiver rejects it."""
    if way == "command":
        _run_program(files, settings.command, notice, program_seconds)
    else:
        post(read_url(files, settings.webhook_file), *render(settings.template, notice))


def read_url(files: Files, path: str) -> str:
    """Read the webhook's URL from its file. Raises LaunchError, whose text never holds the URL."""
    try:
        file = read_private(files, path, 4096)
    except FileNotFoundError:
        raise LaunchError(f"{path} does not exist", "write the URL there, alone") from None
    except ConfigError as error:
        raise LaunchError(error.reason, error.hint) from None
    url = file.content.decode("utf-8", "replace").strip()
    try:
        check_url(url)
    except ValueError as error:
        raise LaunchError(f"what is in {path} {error}", "write the URL there, alone") from None
    return url


def _run_program(files: Files, path: str, notice: Notice, seconds: float) -> None:
    if (program := check_program(files, path)).problem:
        raise LaunchError(program.problem, program.hint)
    fields = {"EVENT": notice.event, "NODE": notice.node, "TITLE": notice.title, "TEXT": notice.text}
    env = ENVIRONMENT | {f"NOTICE_{name}": value for name, value in fields.items()}
    stdin, writer = os.pipe()
    try:
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(as_json(notice))  # less than a pipe holds
        code, output = run_program((files.real(path),), time.sleep, env, seconds, stdin)
    except OSError as error:
        raise LaunchError(
            f"{path} can't be run: {error.strerror}", f"is the program of its first line there? head -n 1 {quote(path)}"
        ) from None
    finally:
        os.close(stdin)
    if code != 0:
        end = f"did not end within {seconds:g} s" if code is None else f"ended with exit code {code}"
        raise LaunchError(f"{path} {end}: {first_line(output)}", f"run it by hand: sudo {quote(path)}")
