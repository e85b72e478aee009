"""No code of sparkd's writes to the disk but what is listed here, with what keeps other users' links away from it.

What goes through `files.write` and `files.remove` needs no line. `tests/integration/test_shared_folders.py` walks them.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/sparkd"
CALLS = {
    *(
        "chmod",
        "chown",
        "hardlink_to",
        "lchown",
        "link_to",
        "makedirs",
        "mkdir",
        "mkdtemp",
        "mkfifo",
        "mknod",
        "mkstemp",
    ),
    *("remove_cut", "rename", "renames", "rmdir", "rmtree", "symlink", "symlink_to", "touch", "truncate", "unlink"),
    *("utime", "write_bytes", "write_text", "NamedTemporaryFile", "copyfile", "copytree", "move", "copy2"),
}
"""By their last word. `open` counts where it is to write, `replace` with the one argument of a path's."""
GUARDED = "refuse_shared, before it"
KERNEL = "a setting of the kernel's, below /proc or /sys"
RUN = "in /run/sparkd, which is root's"
WRITERS = {
    "agent/actions/__init__.py:Actions._private_file": GUARDED,
    "agent/actions/__init__.py:Actions.disown_rank": RUN,
    "agent/actions/compile_caches.py:remove_cut_kernels": GUARDED,
    "agent/actions/compile_caches.py:make_cache_folder": GUARDED,
    "agent/actions/compile_caches.py:prune_caches": GUARDED,
    "agent/actions/compile_caches.py:remove_cut": "within remove_cut_kernels, folder by folder without links",
    "agent/actions/owner_lock.py:remove_account": RUN,
    "agent/actions/container_bodies.py:require_room": RUN,
    "agent/actions/image_archive.py:lock_scratch": "find_shared, before it",
    "agent/actions/image_archive.py:save": "within lock_scratch",
    "agent/actions/files.py:_make_folders": GUARDED,
    "agent/actions/files.py:remove": GUARDED,
    "agent/actions/files.py:replace_head_files": GUARDED,
    "agent/actions/files.py:write": GUARDED,
    "agent/actions/files.py:write_stacks": "behind write, in its folder",
    "agent/actions/history.py:_write": "within `alone`, which has refuse_shared",
    "agent/actions/history.py:write": "within `alone`, which has refuse_shared",
    "agent/actions/readahead.py:_write_kib": KERNEL,
    "agent/actions/page_cache.py:compact_memory": KERNEL,
    "agent/actions/page_cache.py:drop_page_cache": KERNEL,
    "agent/actions/readahead.py:lower_readahead": RUN,
    "agent/actions/readahead.py:restore_readahead": RUN,
    "agent/actions/orphans.py:forget_rank": RUN,
    "agent/actions/segments.py:unlink_segment": "in /dev/shm, by the folder's descriptor",
    "agent/engine/memory_guard/killer.py:_write": RUN,
    "base/lib/lock.py:open_lock": "refuse_shared, before each call of it",
    "tools/cli/main.py:_replace_closed_streams": "/dev/null",
    "tools/cli/main.py:_discard_output": "/dev/null",
    "tools/models/hub.py:_append": "behind become_owner",
    "tools/models/hub.py:_fetch": "behind become_owner",
    "tools/models/image_build.py:Sources.archive": "in memory",
    "tools/setup/setup_manifest.py:Setup._take_back": "behind files.remove, an empty folder of systemd's",
    "tools/setup/sysctl.py:SysctlManager._set": KERNEL,
    "tools/setup/unit_files.py:UnitFiles.install": "behind files.remove, an empty folder of systemd's",
    "tools/support/capture_collector.py:Collector._create": "within run_as_owner",
}


def writes(call: ast.Call) -> bool:
    func = call.func
    name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    if name in ("replace", "truncate"):
        return isinstance(func, ast.Attribute) and len(call.args) == 1 and not call.keywords
    if name == "open":
        given = [*call.args, *(one.value for one in call.keywords)]
        modes = [str(one.value) for argument in given for one in ast.walk(argument) if isinstance(one, ast.Constant)]
        flags = any(flag in ast.unparse(call) for flag in ("O_CREAT", "O_WRONLY", "O_RDWR"))
        return flags or any((mode[:1] in ("w", "a", "x") and len(mode) < 4) or "+" in mode for mode in modes)
    return name in CALLS


def writers(path: Path) -> Iterator[str]:
    def walk(node: ast.AST, names: tuple[str, ...]) -> Iterator[str]:
        for inner in ast.iter_child_nodes(node):
            named = isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if isinstance(inner, ast.Call) and writes(inner):
                yield ".".join(names[:2] if names[:1] and names[0][0].isupper() else names[:1])
            yield from walk(inner, (*names, getattr(inner, "name", "")) if named else names)

    for name in walk(ast.parse(path.read_text()), ()):
        yield f"{path.relative_to(SOURCE)}:{name}"


def test_all_that_writes_is_known() -> None:
    found = {one for path in SOURCE.rglob("*.py") for one in writers(path)}
    assert found == WRITERS.keys()
