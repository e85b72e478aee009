"""The look that plan agreement needs: the image, the model's folder, the script of one's own."""

from __future__ import annotations

from contextlib import closing
from hashlib import sha256

from sparkd.errors import BlockedError, LaunchError
from sparkd.host import Host, docker, docker_image, weights
from sparkd.host.weights import Weights
from sparkd.launch.agreement import Agreement, Seen, agreement
from sparkd.launch.plan import LaunchPlan
from sparkd.lib.dockerd.reader import DockerUnreadableError


def survey(host: Host, plan: LaunchPlan, allow_image_difference: bool) -> Agreement:
    """Look, and agree. Docker must be running: to ask would start it otherwise.

    Waits for as long as a dead file server lets it, so it belongs beside the main loop. Raises LaunchError where the
    image cannot be looked at or is not there, BlockedError where the model's folder or the script cannot be read.
    """
    seen = Seen(image_identity(host, plan.image_to_run), model(host, plan), script(host, plan), allow_image_difference)
    return agreement(plan, seen)


def image_identity(host: Host, ref: str) -> str:
    """Of an image on this machine, whose docker runs."""
    try:
        with closing(host.docker_reader()) as reader:
            found = docker.image_identity(reader, ref)
    except DockerUnreadableError as error:
        raise LaunchError(f"docker can't be asked for the image: {error}", "look at: systemctl status docker") from None
    if found is None:
        raise LaunchError(f"image {ref} is not on this node", docker_image.way_to_get(ref))
    return found


def model(host: Host, plan: LaunchPlan) -> Weights:
    try:
        return weights.manifest(host.files, plan.model_path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BlockedError(
            f"the model's folder {plan.model_path} can't be read: {reason}", f"look at: ls -lL {plan.model_path}"
        ) from None


def script(host: Host, plan: LaunchPlan) -> str:
    """SHA-256 of `engine.script`, empty where the script is generated."""
    if not plan.user_script:
        return ""
    try:
        return sha256(host.files.bytes(plan.user_script)).hexdigest()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BlockedError(f"engine.script {plan.user_script} can't be read: {reason}", "mend or unset it") from None
