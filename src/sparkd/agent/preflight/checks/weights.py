"""Weights: whether the model's folder is complete, as far as metadata show without reading 149 GB."""

from collections.abc import Iterator
from shlex import quote

from msgspec.structs import asdict, replace

from sparkd.agent.preflight.check import Check, Level, Verdict, block, combine_verdicts, ok, unknown, warn
from sparkd.agent.preflight.container_links import Bind, find_outside
from sparkd.base.host import Host, docker_image, model_folder
from sparkd.base.host.model_folder import ModelFolder
from sparkd.base.host.weights import SNAPSHOT
from sparkd.base.lib.text import counted, sanitize, size
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.plan.model import pull_command
from sparkd.base.vllm.container_paths import is_below
from sparkd.base.vllm.flag_values import SAFETENSORS_FORMATS

MOST_SHOWN = 8
"""Flaws, and unfinished files, that the report names: a model may have hundreds of files."""


# Keys of recorded evidence stay.
class WeightsFacts(ModelFolder, frozen=True, rename={"outside_path": "leads_out", "unreadable_path": "closed"}):
    folder: str = ""
    outside_path: str = ""
    """A path that a link of the model leads to, outside the container's mounts; empty for none."""
    unreadable_path: str = ""
    """The folder or a file of it that only some users may read; empty for none."""
    image_user: str | None = None
    """The engine's user, which is read only where `unreadable_path` is set; empty is root, None unknown."""


class ModelWeights(Check[WeightsFacts], frozen=True):
    folder: str
    container_path: str = ""
    """The folder in the container; empty where no mount has it, and for a folder named on the command line."""
    binds: tuple[Bind, ...] = ()
    image: str = ""
    load_format: str = ""
    needs_tokenizer: bool = True
    needs_config: bool = True
    pull: str = ""
    """Command that downloads the model; empty for a folder named on the command line."""
    id = "weights"
    levels = (Level.WARN, Level.BLOCK, Level.UNKNOWN)

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> "ModelWeights":
        plan = inputs.plan
        values = dict(plan.shared)
        binds = tuple(Bind(volume.source, volume.target) for volume in plan.container.volumes)
        model_binds = (bind for bind in binds if is_below(plan.model_path, bind.source))
        return cls(
            folder=plan.model_path,
            container_path=next((bind.target + plan.model_path[len(bind.source) :] for bind in model_binds), ""),
            binds=binds,
            image=plan.image_to_run,
            load_format=values.get("args.load-format", ""),
            needs_tokenizer=not {"args.tokenizer", "args.skip-tokenizer-init"} & values.keys(),
            needs_config="args.hf-config-path" not in values,
            pull=plan.model_pull,
        )

    def probe(self, host: Host) -> WeightsFacts:
        model = model_folder.examine(host.files, self.folder, shards=self.load_format in SAFETENSORS_FORMATS)
        unreadable_path = model_folder.find_unreadable_by_others(host.files, self.folder, model)
        bounded = replace(model, flaws=model.flaws[:MOST_SHOWN], unfinished=model.unfinished[:MOST_SHOWN], opened=())
        return WeightsFacts(
            **asdict(bounded),
            folder=self.folder,
            outside_path=self._find_outside_path(host, model),
            unreadable_path=unreadable_path,
            image_user=docker_image.read_user(host, self.image) if unreadable_path else None,
        )

    def _find_outside_path(self, host: Host, model: ModelFolder) -> str:
        if not model.exists or not self.container_path:
            return ""
        paths = (self.container_path, *(f"{self.container_path}/{name}" for name in model.opened))
        outside_paths = (find_outside(host.files, self.binds, path) for path in paths)
        return sanitize(next((path for path in outside_paths if path), ""), 400)

    def judge(self, facts: WeightsFacts) -> Verdict:
        if not facts.exists:
            return ok(f"{facts.folder} is missing or empty: see script-paths")  # which blocks
        if self.load_format == "dummy":
            return ok("the plan loads no weights: load-format is dummy")
        if facts.download_cache:
            hint = f"extend model.path to {facts.folder}/{facts.download_cache}"
            return block(f"{facts.folder} is a download cache, and no model itself", hint)
        weights = f"{counted(facts.shards, 'shard')}, {size(facts.size_bytes)}"
        good = f"{weights}, all whole" if facts.size_bytes else f"{counted(facts.shards, 'file')} of weights"
        sync = f"sparkd model sync {quote(facts.folder)} on a node that has it"
        fetch = f"{self.pull or pull_command(facts.folder)}, or {sync}"
        return combine_verdicts([*self._find_faults(facts, fetch), *self._find_doubts(facts, fetch)], good)

    def _find_faults(self, facts: WeightsFacts, fetch: str) -> Iterator[Verdict]:
        """Problems with which no engine loads the model."""
        for flaw in facts.flaws:
            reason = f"{flaw.name} {flaw.wrong}{_count_more(flaw.count)}"
            if flaw.unreadable:
                yield unknown(reason, f"look at: ls -lL {quote(facts.folder)}; sudo dmesg; an NFS server's root_squash")
            else:
                yield block(reason, f"git -C {quote(facts.folder)} lfs pull" if "git-lfs" in flaw.wrong else fetch)
        if facts.outside_path:
            reason = f"the container sees only its mounts, and a link of the model leads to {facts.outside_path}"
            hint = "set engine.models_dir to the folder that holds links and files, or mount that path (volumes)"
            yield block(reason, hint)
        if self.needs_config and not facts.has_config and facts.format != ".gguf":
            yield block(f"{facts.folder} has no config.json", fetch)
        if not facts.format and self.load_format in SAFETENSORS_FORMATS:
            yield block(f"{facts.folder} has no weights", fetch)

    def _find_doubts(self, facts: WeightsFacts, fetch: str) -> Iterator[Verdict]:
        """Problems with which an engine may load the model."""
        if facts.unfinished:
            names = f"{facts.unfinished[0]}{_count_more(len(facts.unfinished))}"
            reason = f"a download is under way or was broken off: {names}"
            yield warn(reason, "nothing is to be done where it is under way; else remove it")
        if self.needs_tokenizer and not facts.has_tokenizer and facts.format != ".gguf":
            yield warn(f"{facts.folder} has no tokenizer that is known by its name", fetch)
        if facts.indexed_bytes is not None and not facts.flaws and facts.size_bytes < facts.indexed_bytes:
            reason = f"the shards have {size(facts.size_bytes)}, the index counts {size(facts.indexed_bytes)}"
            yield warn(reason, "index and shards may be of different revisions")
        if facts.unreadable_path and facts.image_user not in (None, "", "0", "root"):
            reason = f"{facts.unreadable_path} is not for everybody to read, and the image runs as {facts.image_user}"
            snapshot = SNAPSHOT.fullmatch(facts.folder)  # has links alone, which chmod -R leaves alone
            yield warn(reason, f"sudo chmod -R a+rX {quote(snapshot[1] if snapshot else facts.folder)}")


def _count_more(count: int) -> str:
    """How many there are besides the first one, in words."""
    return f" (and {count - 1} more)" if count > 1 else ""
