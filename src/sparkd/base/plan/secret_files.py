"""Reads the files of a plan's secrets."""

from sparkd.base.host.files import Files
from sparkd.base.lib.errors import ConfigError, unreadable
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.vllm.args import API_KEY


def read_secrets(files: Files, plan: LaunchPlan) -> dict[str, str]:
    """Contents of the files, for redaction and for the endpoint's key. Raises ConfigError."""
    secrets = {}
    for secret in plan.secrets:
        try:
            # As in the launch script: only trailing line ends are dropped.
            secrets[secret.name] = files.head(secret.file, 64 << 10).decode().rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            error_type = unreadable(error) if isinstance(error, OSError) else ConfigError
            raise error_type(
                f"secret {secret.name} can't be read from {secret.file}: {error}",
                "write it there, readable by root alone",
            ) from None
    key = secrets.get(API_KEY)
    if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key):
        raise ConfigError(
            f"the key in the file of {API_KEY} holds blanks at its ends, or characters that no HTTP header can carry",
            "write the key alone, on one line",
        )
    return secrets
