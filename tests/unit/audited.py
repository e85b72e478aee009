"""Runs the command line under an audit hook that reports each change to the machine. For a process of its own.

python -m tests.unit.audited REPORT ARGUMENTS... writes one line per offence into REPORT.
"""

import os
import sys

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = (
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
    "os.utime", "os.setxattr", "os.kill", "os.killpg", "os.system", "os.exec", "os.fork", "os.forkpty",
    "os.posix_spawn", "os.spawn", "os.putenv", "os.unsetenv", "subprocess.Popen", "shutil.", "tempfile.", "fcntl.",
    "socket.bind", "socket.connect", "socket.sendto", "signal.pthread_kill", "ctypes.dlopen", "mmap.__new__", "pty.",
)  # fmt: skip
ACTING_MODULES = ("sparkd.agent.actions", "sparkd.agent.daemon.operator_program", "sparkd.agent.preflight.gate")
"""None of them is imported by a command that only looks."""


def main(report: int, arguments: list[str]) -> int:
    def watch(event: str, args: tuple[object, ...]) -> None:
        if event == "open":
            _path, _mode, flags = args
            if isinstance(flags, int) and flags & WRITES:
                os.write(report, f"open {args!r}\n".encode())
        elif event.startswith(CHANGES):
            os.write(report, f"{event} {args!r}\n".encode())

    sys.addaudithook(watch)
    if arguments[0] == "write-a-file":
        with open(arguments[1], "w") as file:
            file.write("x")
        return 0
    from sparkd.tools.cli.main import main as sparkd

    code = sparkd(arguments)
    for module in ACTING_MODULES:
        if module in sys.modules:
            os.write(report, f"imported {module}\n".encode())
    for name, imported in tuple(sys.modules.items()):  # the docker SDK imports subprocess too, and must not use it
        if name.startswith("sparkd") and hasattr(imported, "subprocess"):
            os.write(report, f"{name} imported subprocess\n".encode())
    return code


if __name__ == "__main__":
    descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.exit(main(descriptor, sys.argv[2:]))
