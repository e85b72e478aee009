"""The hub's client, set up for sparkd: its memory, its tries after a broken connection, and what its errors mean.

Only this module and hub.py import huggingface_hub.
"""

import errno
import logging
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sparkd.agent.actions.shared_folders import SharedFolderError
from sparkd.base.lib import without
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.text import sanitize

_FIRST_TRIES, _MOST_TRIES = 3, 12
"""Tries in a row without a new byte: before the first byte, and after it. Those take four minutes and more, in which a
router starts again. The client itself tries again only after some kinds of broken connections.
"""
_AGAIN = "run it again: it resumes"
_DISK_HINTS = {
    errno.ENOSPC: f"make room: df -h; then {_AGAIN}",
    errno.EACCES: "with sudo, or into a folder of your own: --to FOLDER",
}
_CLIENT_ERRORS = (ValueError, RuntimeError, ImportError, MemoryError, LookupError, TypeError, AttributeError)
"""Errors of the client besides those of connections; the last three where an answer has another form."""
ANSWER_BYTES, DOWNLOAD_BYTES = 256 << 20, 2 << 30
"""Memory for the list of a model's files, and for a download: the client reads the list and the text of an error whole.
0.3 MB on the wire may be 300 MiB (seen).
"""


def fetch_until_complete(
    fetch: Callable[[], object], count_received: Callable[[], int], pause: Callable[[float], object] = time.sleep
) -> None:
    """Fetch again after every connection that breaks off, as long as some bytes come between two breaks.

    A refusal, too, is tried again after some bytes: the address of a file may have expired.
    """
    from huggingface_hub.errors import HfHubHTTPError

    most_bytes, vain_tries = count_received(), 0
    while True:
        try:
            fetch()
            return
        except connection_errors() as error:
            bytes_now = count_received()
            vain_tries = vain_tries + 1 if bytes_now <= most_bytes else 0  # a file that begins again has fewer
            most_bytes = max(bytes_now, most_bytes)
            is_of_disk = isinstance(error, OSError) and error.errno is not None  # the client's own have no number
            is_refusal = isinstance(error, HfHubHTTPError) and error.response.status_code < 500
            most_tries = _MOST_TRIES if most_bytes > 0 else _FIRST_TRIES
            if is_of_disk or vain_tries == most_tries or (vain_tries and is_refusal):
                raise
            pause(min(2.0 ** max(1, vain_tries), 30.0))


def connection_errors() -> tuple[type[Exception], ...]:
    """Errors that the client raises, with its HTTP library's; of those only HfHubHTTPError is an OSError."""
    from httpx import HTTPError

    return (OSError, HTTPError)


@contextmanager
def client(name: str) -> Iterator[None]:
    """Import the client, set up for sparkd. Raises BlockedError in place of the client's errors."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    with without("click", "rich"):  # its HTTP library imports a command line where these are found
        from sparkd.base.lib.webhook import is_url

        if not is_url(os.environ.get("HF_ENDPOINT", "https://huggingface.co")):  # it may have a password
            hint = f"correct it: sudo env HF_ENDPOINT=URL sparkd model pull {name}"
            raise BlockedError("HF_ENDPOINT is no URL of https:// or http://", hint)
        import huggingface_hub.file_download  # now: the folder's owner, who downloads, may not read root's Python
        import huggingface_hub.hf_api
        from httpx import InvalidURL

    # Its warnings show whole addresses, which may be signed, and its own handler prints text as it is.
    logger = logging.getLogger(huggingface_hub.__name__)
    logger.setLevel(logging.ERROR)
    logger.handlers.clear()
    client_errors: tuple[type[Exception], ...] = (*connection_errors(), InvalidURL, *_CLIENT_ERRORS)
    try:
        yield
    except SharedFolderError:
        raise
    except client_errors as error:
        raise explain_error(error, name) from None


@contextmanager
def limit_memory(more_bytes: int) -> Iterator[None]:
    """Meanwhile let this process take at most so many bytes more. Raises MemoryError."""
    soft, hard = limits = resource.getrlimit(resource.RLIMIT_AS)
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most_bytes = used_bytes + more_bytes
    resource.setrlimit(
        resource.RLIMIT_AS, (most_bytes if soft == resource.RLIM_INFINITY else min(soft, most_bytes), hard)
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def explain_error(error: Exception, name: str) -> BlockedError:
    """What an error of the client means for the model of that name, with its remedy."""
    from httpx import InvalidURL
    from huggingface_hub import constants, errors

    hub = Redaction()(constants.ENDPOINT)  # it may have a password
    token = "give a token that may read it: --token-file FILE"  # noqa: S105
    match error:
        case errors.GatedRepoError():
            hint = f"accept them at {hub}/{name}, and {token}"
            return BlockedError(f"{name} is for those who have accepted its terms", hint)
        case errors.RevisionNotFoundError():
            return BlockedError(f"{name} has no such revision", "--revision takes a branch, a tag or a commit")
        case errors.RepositoryNotFoundError():
            return BlockedError(f"{hub} has no model {name}, or shows it to few", f"correct the name, or {token}")
        case errors.OfflineModeIsEnabled():
            return BlockedError("HF_HUB_OFFLINE says to stay offline, so nothing is downloaded", "unset HF_HUB_OFFLINE")
        case errors.HfHubHTTPError():
            return BlockedError(f"{hub} answers HTTP {error.response.status_code} for {name}", _AGAIN)
        case OSError(errno=int() as number):
            hint = _DISK_HINTS.get(number, f"fix that, then {_AGAIN}")
            return BlockedError(f"{sanitize(str(error.filename or 'a file'))}: {error.strerror}", hint)
        case MemoryError():
            hint = f"no list of files is so large; another mirror: sudo env HF_ENDPOINT=URL sparkd model pull {name}"
            return BlockedError(f"{hub} answers with more than {ANSWER_BYTES >> 20} MiB for {name}", hint)
        case LookupError() | TypeError() | AttributeError():
            hint = f"another mirror, or without one: sudo env HF_ENDPOINT=URL sparkd model pull {name}"
            return BlockedError(f"{hub} answers in another form than a hub: {sanitize(repr(error))}", hint)
        case InvalidURL():  # its text may have a password
            return BlockedError(
                "a proxy of the environment is no URL", "correct HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, or unset it"
            )
        case ValueError() | RuntimeError() | ImportError():
            return BlockedError(f"the hub's client can't download {name}: {sanitize(str(error))}")
        case _:
            command = f"sudo env HTTPS_PROXY=URL HF_ENDPOINT=URL sparkd model pull {name}"  # sudo keeps neither
            hint = f"is this node online? Then {_AGAIN}. By a proxy, from a mirror, or both: {command}"
            return BlockedError(f"{hub} can't be reached, or broke off: {type(error).__name__}", hint)
