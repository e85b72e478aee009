"""Compile caches: whether they are usable and still there, and whether a start that must compile has the memory."""

from collections.abc import Iterator, Mapping, Sequence
from shlex import quote

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.preflight.check import Check, Level, Verdict, block, combine_verdicts, ok, skipped, warn
from sparkd.base.host import Host, caches, docker, docker_image
from sparkd.base.host.caches import Folder
from sparkd.base.host.ownership import find_writable
from sparkd.base.lib.dockerd.reader import DockerError, DockerReader
from sparkd.base.lib.text import GIB, sanitize, size
from sparkd.base.plan.inputs import MemoryNeed
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.state import launch_history
from sparkd.base.vllm.command import first_values
from sparkd.base.vllm.container_paths import CUSTOM_OPS_CACHES, cache_folders, is_below
from sparkd.base.vllm.lint.launch import Launch
from sparkd.base.vllm.lint.predicates import compiles_custom_ops

COMPILE_VALUES = ("model", "args.compilation-config", "caches.", "container.mounts")
"""Prefixes of the plan's values that decide what is compiled, and what of it is kept."""
SLOW = "the first start compiles from scratch: 36 to 40 minutes were seen"
COMPILE_BYTES = 3 * GIB
"""Memory beside the engine's share that a start needs, to compile custom_ops ["all"]: with no more it is blocked.

"Only ~3 GiB RAM available during model load": two machines froze ("Two-Node DGX Spark Cluster: Running DeepSeek V4
Flash at 16 TPS", Tobias Weiss). No report shows a need of more. A pair just booted compiled a wiped cache at a share
of 0.85 of 121 GiB ("Another dual-Spark data point", NVIDIA developer forum). A third, which kept vLLM's cache alone,
reports 16 s of torch.compile and a start of 8 minutes at 0.90; 116 GiB were free, and 107.7 were the share ("DeepSeek
V4 Flash on Dual DGX Spark", Echo). While weights load more is available, since the KV cache is allocated after them.
"""
NOT_KEPT = Folder("", "missing")
"""Stands for a cache that no mount keeps."""


class CacheFacts(Struct, frozen=True):
    """The caches of the plan's image, and how many other images have some."""

    image: str
    """"known", "away" (docker), "missing", or why docker did not answer."""
    caches: tuple[Folder, ...] = ()
    user: str = ""
    used_before: tuple[str, ...] = ()
    """Names of the caches that the last good start had filled; empty where that was of another image."""
    others: int = 0
    others_bytes: int = 0
    others_whole: bool = True
    custom_ops: tuple[Folder, ...] = ()
    """Folders that custom_ops ["all"] compiles into, in the order of CUSTOM_OPS_CACHES; NOT_KEPT for no mount."""
    compiled_before: bool = False
    """Whether the last good start compiled the same: image, model, compilation-config and the caches that it kept."""
    total_bytes: int = 0
    available_bytes: int = 0
    gpu_total_bytes: int | None = None
    """Memory of a GPU that has its own; None where CPU and GPU share one."""
    shared: str = ""
    """The folder of the caches, or one above it, that others than root may write to; empty where there is none."""


class CompileCache(Check[CacheFacts], frozen=True):
    """A slow start is no fault and never blocks; one that would freeze the machine does."""

    plan: LaunchPlan
    need: MemoryNeed
    id = "compile-cache"
    levels = (Level.WARN, Level.BLOCK)

    @property
    def compiles_ops(self) -> bool:
        """Whether the plan compiles custom_ops ["all"], which takes memory beside the engine's."""
        flags, env = first_values(self.plan.argv), dict(self.plan.env)
        return compiles_custom_ops(Launch(flags, env, gpu=self.plan.container.gpus == "all"))

    def probe(self, host: Host) -> CacheFacts:
        if not self.plan.caches and not self.compiles_ops:
            return CacheFacts("known")
        ref = self.plan.image_to_run

        def read_image(reader: DockerReader) -> tuple[docker_image.Image | None, str | None]:
            return docker_image.read_image(reader, ref), docker_image.image_identity(reader, ref)

        try:
            image, identity = docker.query(host, read_image) or (None, "away")
        except DockerError as error:
            return CacheFacts(sanitize(str(error)))
        if image is None:
            return CacheFacts(identity or "missing")
        history = launch_history.read_history(host.files)
        same_image = history.good.get("image.identity") == identity
        paths = (caches.path(image.id, cache.name) for cache in self.plan.caches)
        other_caches = caches.count_others(host.files, image.id)
        facts = CacheFacts(
            image="known",
            caches=tuple(caches.count_folder(host.files, path) for path in paths),
            user=image.user.partition(":")[0],
            # Not in a copied tree, whose owner is the one who copied it.
            shared=find_writable(host.files, caches.ROOT) if host.live else "",
            used_before=history.good_caches if same_image else (),
            others=len(other_caches),
            others_bytes=sum(other.bytes for other in other_caches),
            others_whole=all(other.whole for other in other_caches),
            compiled_before=same_image and self._compiles_as(history.good),
        )
        return self._add_custom_ops(host, facts, image.id) if self.compiles_ops else facts

    def _add_custom_ops(self, host: Host, facts: CacheFacts, image_id: str) -> CacheFacts:
        """The facts with the folders that custom_ops ["all"] compiles into, and the memory for that."""
        memory, counted = host.meminfo(), {folder.path: folder for folder in facts.caches}
        return replace(
            facts,
            custom_ops=tuple(
                counted.get(path) or (caches.count_folder(host.files, path) if path else NOT_KEPT)
                for path in _list_custom_ops_paths(self.plan, image_id)
            ),
            total_bytes=memory.total_bytes,
            available_bytes=memory.available_bytes,
            gpu_total_bytes=host.gpu().total_bytes,
        )

    def _compiles_as(self, good: Mapping[str, str]) -> bool:
        """Whether the plan compiles what that good start did. A cache without a record counts as the same: an earlier
        sparkd kept fewer caches.
        """
        compiled = (value for value in self.plan.shared if value[0].startswith(COMPILE_VALUES))
        return all(good.get(key, text if key.startswith("caches.") else None) == text for key, text in compiled)

    def judge(self, facts: CacheFacts) -> Verdict:
        if not self.plan.caches and not self.compiles_ops:
            return ok("the recipe keeps none")
        if facts.image != "known":
            reasons = {"away": "docker is away", "missing": "the image is not on this node"}
            return skipped(f"not inspected: {reasons.get(facts.image, facts.image)}")
        kept = [folder for folder in facts.caches if folder.files]
        kept_size = _format_size(sum(folder.bytes for folder in kept), all(folder.whole for folder in kept))
        good = f"{kept_size} kept for this image" if kept else f"none yet for this image: {SLOW}"
        if facts.others:
            images = "1 other image has" if facts.others == 1 else f"{facts.others} other images have"
            good += f"; {images} {_format_size(facts.others_bytes, facts.others_whole)}"
        problems = [*self._find_problems(facts)]
        compilation = self._judge_compilation(facts)
        if compilation is None:
            return combine_verdicts(problems, good)
        if any(problem.level.blocks for problem in problems):
            return combine_verdicts([*problems, compilation], good)
        # The fixes of other checks may free the memory that the compilation lacks.
        return replace(combine_verdicts([compilation, *problems], good), shortage_bytes=compilation.shortage_bytes)

    def _judge_compilation(self, facts: CacheFacts) -> Verdict | None:
        """Judge the memory for a start that must compile custom_ops ["all"]; None for any other."""
        if not self.compiles_ops or facts.gpu_total_bytes is not None:
            return None
        missing = _describe_missing(facts.custom_ops, compiled_before=facts.compiled_before)
        if not missing:
            return None
        engine_bytes = self.need.engine_bytes(facts.total_bytes)
        needed_bytes = engine_bytes + COMPILE_BYTES
        reason = (
            f'custom_ops ["all"] compiles from scratch ({missing}) while weights load: '
            f"{size(facts.available_bytes)} available, more than {size(needed_bytes)} needed ({size(engine_bytes)} and "
            f"{size(COMPILE_BYTES)} to compile)"
        )
        if facts.available_bytes > needed_bytes:
            return warn(reason, "leave this node to itself until it serves: with 3 GiB available two machines froze")
        share = max(0, facts.available_bytes - COMPILE_BYTES) * 100 // max(1, facts.total_bytes) / 100
        hint = f"lower gpu-memory-utilization to {share:g} for the first start, on all nodes; or take custom_ops out"
        return block(reason, hint, shortage_bytes=needed_bytes - facts.available_bytes)

    def _find_problems(self, facts: CacheFacts) -> Iterator[Verdict]:
        yield from _find_unusable(facts)
        # A cache of the last good start may be empty now, but its folder must be there.
        used_folders = [folder for folder in facts.caches if folder.name in facts.used_before]
        gone_names = ", ".join(folder.name for folder in used_folders if folder.kind == "missing")
        all_empty = all(folder.empty or folder.kind == "missing" for folder in facts.caches)
        is_eager = "enforce-eager" in first_values(self.plan.argv)  # such an engine may leave its caches empty
        if not is_eager and (gone_names or (used_folders and all_empty)):
            loss = f"the cache {gone_names} is gone" if gone_names else "its caches are empty"
            reason = f"{loss}, although the last good start was of this image: {SLOW}"
            yield warn(reason, "let readiness.timeout_seconds allow it; find what cleans /var/lib/sparkd/cache")


def _format_size(count: int, whole: bool) -> str:
    return size(count) if whole else f"at least {size(count)}"


def _quote_paths(folder: str, names: Sequence[str]) -> str:
    """The names in the folder for bash. No asterisk: the user's shell may not be allowed to read the folder."""
    last = f"{{{','.join(names)}}}" if len(names) > 1 else names[0]
    return f"{quote(folder)}/{last}"


def _find_unusable(facts: CacheFacts) -> Iterator[Verdict]:
    if facts.shared:
        reason = f"others than root may write to {facts.shared}, and so to {caches.ROOT}, whose kernels engines run"
        hint = f"sudo chown root: {quote(facts.shared)} && sudo chmod go-w {quote(facts.shared)}"
        yield block(reason, f"{hint}; or mount the folder (mount --bind) on /var/lib/sparkd in place of a link")
    for folder in facts.caches:
        if folder.kind not in ("folder", "missing"):
            reason = f"{folder.path} is no folder, but a {folder.kind}"
            yield block(reason, f"remove it: sudo rm {quote(folder.path)}")
    if closed := [folder.path for folder in facts.caches if _is_closed(folder, facts.user)]:
        names = [path.rpartition("/")[2] for path in closed]
        where = closed[0].rpartition("/")[0]
        reason = f"the image runs as {facts.user}, who can't write to {', '.join(names)} in {where}"
        uid = facts.user if facts.user.isdecimal() else "UID"
        hint = f"set HOME in the recipe's env; then: sudo install -d -o {uid} {_quote_paths(where, names)}"
        yield warn(f"{reason}: nothing will be kept", hint)


def _is_closed(folder: Folder, user: str) -> bool:
    """Whether this user can't write to the folder, because it is root's, or missing: sparkd makes it as root."""
    is_roots = folder.kind in ("folder", "missing") and folder.uid == 0
    return is_roots and user not in ("", "root", "0") and not folder.writable_by_others


def _list_custom_ops_paths(plan: LaunchPlan, image_id: str) -> Iterator[str]:
    """Paths on the node of CUSTOM_OPS_CACHES, in their order; an empty one where no mount keeps the cache."""
    mounts = {volume.target: volume.source for volume in plan.container.volumes if not volume.read_only}
    mounts |= {cache.target: caches.path(image_id, cache.name) for cache in plan.caches}
    folders = cache_folders(dict(plan.env))
    for folder in (folders[name] for name in CUSTOM_OPS_CACHES):
        target = max((mount for mount in mounts if is_below(folder, mount)), key=len, default=None)
        yield mounts[target] + folder.removeprefix(target) if target else ""


def _describe_missing(folders: Sequence[Folder], *, compiled_before: bool) -> str:
    """The caches that a start has to fill, such as `triton empty`; empty where it compiles nothing.

    `folders`: of CUSTOM_OPS_CACHES, in their order. `compiled_before`: whether the last good start compiled the same.
    """
    missing = {
        name: "not kept" if folder == NOT_KEPT else "empty"
        for name, folder in zip(CUSTOM_OPS_CACHES, folders, strict=True)
        if folder.kind != "folder" or folder.empty
    }
    # This model does not use a cache that the last good start left empty. Where one is not kept, that start proves
    # nothing: it compiled for this cache, too.
    if compiled_before and NOT_KEPT not in folders and len(missing) < len(folders):
        return ""
    return ", ".join(f"{name} {problem}" for name, problem in missing.items())
