"""Reads what a plan names: the image, the model folder and the user's script, which nodes compare; files of secrets."""

from contextlib import closing
from hashlib import sha256
from shlex import quote

from sparkd.base.host import Host, docker_image, weights
from sparkd.base.host.files import Files
from sparkd.base.lib.dockerd.reader import DockerError
from sparkd.base.lib.errors import BlockedError, Cause, ConfigError, LaunchError, unreadable
from sparkd.base.plan.agreement import Agreement, make_agreement
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.vllm.args import API_KEY


def fingerprint_plan(host: Host, plan: LaunchPlan, allow_image_difference: bool) -> Agreement:
    """Requires a running docker, because a request would start it. May block on a dead file server.

    Raises LaunchError for a missing or unreadable image, BlockedError for an unreadable model folder or script.
    """
    identity, manifest = read_image_identity(host, plan), read_weights(host, plan)
    return make_agreement(plan, identity, manifest, hash_user_script(host, plan), allow_image_difference)


def read_image_identity(host: Host, plan: LaunchPlan) -> str:
    ref = plan.image_to_run
    try:
        with closing(host.docker_reader()) as reader:
            identity = docker_image.image_identity(reader, ref)
    except DockerError as error:
        reason = f"docker can't be queried for the image: {error}"
        raise LaunchError(reason, "look at: systemctl status docker") from None
    if identity is None:
        hint = docker_image.how_to_get(ref, plan.image_build)
        raise LaunchError(f"image {ref} is not on this node", hint, cause=Cause.IMAGE_MISSING)
    return identity


def read_weights(host: Host, plan: LaunchPlan) -> weights.Manifest:
    folder = plan.model_path
    try:
        return weights.manifest(host.files, folder)
    except OSError as error:
        raise _make_error(f"the model's folder {folder}", error, f"look at: sudo ls -lL {quote(folder)}") from None


def hash_user_script(host: Host, plan: LaunchPlan) -> str:
    """SHA-256 of `engine.script`; empty for a generated script."""
    if not plan.user_script:
        return ""
    try:
        return sha256(host.files.bytes(plan.user_script)).hexdigest()
    except OSError as error:
        raise _make_error(f"engine.script {plan.user_script}", error, "fix or unset it") from None


def _make_error(what: str, error: OSError, hint: str) -> BlockedError:
    return BlockedError(f"{what} can't be read: {error.strerror or type(error).__name__}", hint)


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
