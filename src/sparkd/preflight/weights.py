"""Weights: the model's folder is whole, as far as can be told without reading 149 GB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host import container_paths, docker_image, model_folder
from sparkd.host.container_paths import Bind
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.problems import Problem, verdict
from sparkd.preflight.sizes import size

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.model_folder import Flaw, ModelFolder
    from sparkd.launch.plan import LaunchPlan

FORMATS = ("", "auto", "hf", "safetensors", "mistral", "fastsafetensors", "instanttensor", "runai_streamer")
"""Values of `--load-format` that read the folder's safetensors files, as they are looked at here."""
MOST_SHOWN = 8


class WeightsFacts(Struct, frozen=True):
    folder: str
    there: bool
    download_cache: str
    config: bool
    tokenizer: bool
    format: str
    shards: int
    size_bytes: int
    indexed_bytes: int | None
    flaws: tuple[Flaw, ...]
    partial: tuple[str, ...]
    leads_out: str
    """Where the container would look for a file of the model, and has no mount."""
    closed: str
    """What not everybody on the node may read."""
    image_user: str | None
    """Whom the engine runs as, asked for where that matters; empty is root, None unknown."""


class ModelWeights(Check[WeightsFacts], frozen=True):
    """Every file that the loader will open is there and whole."""

    folder: str
    seen_as: str = ""
    """The folder in the container; empty where that does not matter."""
    binds: tuple[Bind, ...] = ()
    image: str = ""
    load_format: str = ""
    needs_tokenizer: bool = True
    needs_config: bool = True
    id: ClassVar[str] = "weights"
    about: ClassVar[About] = About(
        levels=(Level.WARN, Level.BLOCK, Level.UNKNOWN),
        reads="names, sizes, links and modes in the model's folder; its index; config.json; 4 KiB of each shard; "
        "docker: the image's user",
        source="safetensors 0.8: what its reader refuses, tried; Hugging Face's cache layout and `hf download`",
        page="""\
A shard that is missing or cut off ends the load after minutes, with an error of the loader's that names no cause. This
check looks at the model's folder as the loader will, and reads no tensor:

  - every shard of model.safetensors.index.json is there. Without an index, every shard of a set whose names say how
    many there are (model-00002-of-00046.safetensors); else every *.safetensors file.
  - every shard is as long as its own header says. The library refuses a file that is shorter or longer.
  - no file is empty, a git-lfs pointer, or a link to nothing. In Hugging Face's cache (models--ORG--NAME) the model
    is snapshots/REVISION, whose files are links into blobs.
  - the links lead to where the container has them too: it sees its mounts and nothing else of the node.
  - config.json (or Mistral's params.json) is a JSON object, and there is a tokenizer, unless the recipe gives another
    (hf-config-path, tokenizer).

Weights in other formats (gguf, bin), and load formats that read other files, are judged by presence alone. A folder
that is missing or empty is for script-paths to say.

  block    the loader would fail. Finish the download (sparkd model pull), or copy the folder from another node
           (sparkd model sync, there).
  warn     nothing is missing, but a download into the folder is under way or was broken off, no tokenizer is to be
           seen, the index counts more bytes than the shards have, or the image runs as a user who may not be allowed
           to read the files (most images run as root, who reads them all).
  unknown  a file can't be read: a file server that keeps root out (root_squash), or a failing disk.""",
    )

    def probe(self, host: Host) -> WeightsFacts:
        found = model_folder.look(host.files, self.folder, shards=self.load_format in FORMATS)
        closed = model_folder.closed(host.files, self.folder, found)
        return WeightsFacts(
            folder=self.folder,
            there=found.there,
            download_cache=found.download_cache,
            config=found.config,
            tokenizer=found.tokenizer,
            format=found.format,
            shards=found.shards,
            size_bytes=found.size_bytes,
            indexed_bytes=found.indexed_bytes,
            flaws=found.flaws[:MOST_SHOWN],
            partial=found.partial[:MOST_SHOWN],
            leads_out=self._leads_out(host, found),
            closed=closed,
            image_user=docker_image.user(host, self.image) if closed else None,
        )

    def _leads_out(self, host: Host, found: ModelFolder) -> str:
        if not found.there or not self.seen_as:
            return ""
        folder = container_paths.leads_out(host.files, self.binds, self.seen_as)
        if folder:
            return folder
        outside = (container_paths.leads_out(host.files, self.binds, f"{self.seen_as}/{name}") for name in found.opened)
        return next((path for path in outside if path), "")

    def judge(self, facts: WeightsFacts) -> Verdict:
        if not facts.there:
            return Verdict(Level.OK, f"{facts.folder} is missing or empty, which script-paths tells")
        if self.load_format == "dummy":
            return Verdict(Level.OK, "the plan loads no weights: load-format is dummy")
        if facts.download_cache:
            hint = f"model.path must go on: {facts.folder}/{facts.download_cache}"
            return Verdict(Level.BLOCK, f"{facts.folder} is a download cache, and no model itself", hint)
        problems = [*self._broken(facts), *self._doubtful(facts)]
        weights = f"{facts.shards} shard{'s' * (facts.shards != 1)}, {size(facts.size_bytes)}"
        return verdict(problems, f"{weights}, all whole" if facts.size_bytes else f"{facts.shards} files of weights")

    def _broken(self, facts: WeightsFacts) -> list[Problem]:
        problems = [self._flaw(facts, flaw) for flaw in facts.flaws]
        if facts.leads_out:
            reason = f"the container sees only its mounts, and a link of the model leads to {facts.leads_out}"
            hint = "set engine.models_dir to the folder that holds links and files, or mount that path (volumes)"
            problems.append(Problem(Level.BLOCK, reason, hint))
        if self.needs_config and not facts.config and facts.format != ".gguf":
            problems.append(Problem(Level.BLOCK, f"{facts.folder} has no config.json", _anew(facts)))
        if not facts.format and self.load_format in FORMATS:
            problems.append(Problem(Level.BLOCK, f"{facts.folder} has no weights", _anew(facts)))
        return problems

    def _flaw(self, facts: WeightsFacts, flaw: Flaw) -> Problem:
        more = f" (and {flaw.count - 1} more)" if flaw.count > 1 else ""
        reason = f"{flaw.name} {flaw.wrong}{more}"
        if flaw.unreadable:
            return Problem(Level.UNKNOWN, reason, f"look at: ls -lL {facts.folder}; dmesg; an NFS server's root_squash")
        hint = f"git -C {facts.folder} lfs pull" if "git-lfs" in flaw.wrong else _anew(facts)
        return Problem(Level.BLOCK, reason, hint)

    def _doubtful(self, facts: WeightsFacts) -> list[Problem]:
        problems = []
        if facts.partial:
            more = f" (and {len(facts.partial) - 1} more)" if facts.partial[1:] else ""
            reason = f"a download is under way or was broken off: {facts.partial[0]}{more}"
            problems.append(Problem(Level.WARN, reason, "let it end, or remove it"))
        if self.needs_tokenizer and not facts.tokenizer and facts.format != ".gguf":
            problems.append(
                Problem(Level.WARN, f"{facts.folder} has no tokenizer that is known by its name", _anew(facts))
            )
        if facts.indexed_bytes is not None and not facts.flaws and facts.size_bytes < facts.indexed_bytes:
            reason = f"the shards have {size(facts.size_bytes)}, the index counts {size(facts.indexed_bytes)}"
            problems.append(Problem(Level.WARN, reason, "index and shards may be of different revisions"))
        if facts.closed and facts.image_user not in (None, "", "0", "root"):
            reason = f"{facts.closed} is not for everybody to read, and the image runs as {facts.image_user}"
            problems.append(Problem(Level.WARN, reason, f"chmod -R a+rX {facts.folder}"))
        return problems


def of_plan(plan: LaunchPlan) -> ModelWeights:
    said = dict(plan.shared)
    binds = tuple(Bind(one.source, one.target) for one in plan.container.mounts)
    return ModelWeights(
        folder=plan.model_path,
        seen_as=_seen_as(plan.model_path, binds),
        binds=binds,
        image=plan.image_to_run,
        load_format=said.get("args.load-format", ""),
        needs_tokenizer=not {"args.tokenizer", "args.skip-tokenizer-init"} & said.keys(),
        needs_config="args.hf-config-path" not in said,
    )


def _seen_as(path: str, binds: Sequence[Bind]) -> str:
    """A node's path as the container has it."""
    inside = (one for one in binds if path == one.source or path.startswith(f"{one.source}/"))
    return next((one.target + path[len(one.source) :] for one in inside), "")


def _anew(facts: WeightsFacts) -> str:
    return f"sparkd model pull --to {facts.folder}, or sparkd model sync on a node that has it"
