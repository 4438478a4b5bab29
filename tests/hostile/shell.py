"""Commands in processes of their own, forked from one that has imported everything: a command costs what it does.

As a program this is that process: it reads one JSON object a line, forks, and prints the number of the child and, when
the child has ended, its status. Children may not take more memory or time than a command on a small table needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

MEMORY, SECONDS = 6 << 30, 60
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (128 + the signal where one killed it) and what it printed."""

    code: int
    out: str
    err: str


class Shell:
    """The process from which commands are forked; ``with Shell() as shell: shell.run(...)``."""

    def __enter__(self):
        command = [sys.executable, "-m", "tests.hostile.shell"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, **pipes, text=True, cwd=ROOT)
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()

    def start(self, arguments, cwd, *, stdin=None, stdout=None, closed=()):
        """Start a command; return the number of its process.

        Args:
            arguments: What follows ``vhat``; bytes that are not UTF-8 as lone surrogates.
            cwd: Its directory, where ``.out`` and ``.err`` get what it prints.
            stdin: The file to read from; the null device by default.
            stdout: The file to write to; ``.out`` by default.
            closed: Numbers of standard streams that are closed.
        """
        order = {"arguments": list(map(str, arguments)), "cwd": str(cwd), "stdin": stdin, "stdout": stdout}
        self.process.stdin.write(json.dumps(order | {"closed": list(closed)}) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def wait(self, cwd):
        """Wait for the command that was started last."""
        code = int(self.process.stdout.readline())
        out, err = (path.read_text(errors="replace") if path.exists() else "" for path in (cwd / ".out", cwd / ".err"))
        for path in (cwd / ".out", cwd / ".err"):
            path.unlink(missing_ok=True)
        return Ended(code, out, err)

    def run(self, arguments, cwd, **streams):
        """Start a command and wait for it."""
        self.start(arguments, cwd, **streams)
        return self.wait(cwd)

    def signalled(self, arguments, cwd, number, after):
        """Start a command and send it a signal after so many seconds."""
        child = self.start(arguments, cwd)
        time.sleep(after)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)
        return self.wait(cwd)


def _child(order) -> None:
    """Become a command; never returns."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Under nohup the signal is ignored, and the command would leave it so.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.alarm(15 * SECONDS)  # a busy machine is no hang
    os.chdir(order["cwd"])
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, path, how in (
        (0, order["stdin"] or os.devnull, os.O_RDONLY),
        (1, order["stdout"] or ".out", flags),
        (2, ".err", flags),
    ):
        opened = os.open(path, how, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if number in order["closed"]:
            os.close(number)
            setattr(sys, name, None)
        else:
            errors = "backslashreplace" if number == 2 else None
            setattr(sys, name, open(number, mode, encoding="utf-8", errors=errors, closefd=False))  # noqa: SIM115
    from vhat.cli import app

    code = 0
    try:
        app(order["arguments"], prog_name="vhat")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException as error:  # what Python would show
        import traceback

        traceback.print_exception(error)
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:
            code = 120  # as Python does
    os._exit(code)


def _preload() -> None:
    import jinja2  # noqa: F401
    import numpy as np
    import rich.console  # noqa: F401

    import vhat
    import vhat.cli
    import vhat.report

    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 1))
    network = vhat.NetworkRegressor((1,), weight_decay=0.1).fit(x, x[:, 0] + 0.1 * rng.normal(size=30))
    network.predict_interval(x[:2])
    assert "jax" not in sys.modules or not sys.modules["jax"].__dict__.get("_threads"), "threads must not be forked"


def main() -> None:
    """Serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _preload()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _child(json.loads(line))
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        print(code if code >= 0 else 128 - code, flush=True)


if __name__ == "__main__":
    main()
