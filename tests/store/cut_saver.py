"""Saves of which one call to the operating system fails, or is the last.

``python -m tests.store.cut_saver FOLDER ENOSPC kill`` goes through all calls, once for each way to fail.

For every call in turn a child is forked that saves over an old document, saves for the first time, or reads; the call
raises an error, writes a half and raises, or is where the process is killed. What is left is read without any such
accident. Prints one JSON object: how many calls there are of each kind, and what was wrong.
"""

from __future__ import annotations

import builtins
import errno
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np

import vhat
from vhat.store import read, write

OLD = {"name": "old", "w": np.arange(6.0).reshape(2, 3)}
NEW = {"name": "new", "w": np.arange(500.0)}
LATER = {"name": "later", "w": np.ones(3)}
EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir", "fcntl.flock"}
"""What Python tells its audit hooks of: an error that a hook raises is that of the call."""
DONE, SAID, RAW = 0, 3, 4


class Injector:
    """Counts the calls that concern a folder, and lets one of them fail."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.at = -1
        self.how = ""
        self.count = 0
        self.on = False
        sys.addaudithook(self.audit)
        self.fsync, self.stat, self.open = os.fsync, os.stat, Path.open
        os.fsync = lambda handle: (self.meet("fsync"), self.fsync(handle))[1]
        os.stat = self.looked_at
        # a function: a bound method would not be given the path
        Path.open = lambda path, *args, **kwargs: self.opened(path, *args, **kwargs)  # noqa: PLW0108

    def audit(self, event, args) -> None:
        if self.on and event in EVENTS:
            path = args[0] if args else ""
            if event == "fcntl.flock" or (
                isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.folder)
            ):
                self.meet(event)

    def looked_at(self, path, *args, **kwargs):
        if self.on and isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.folder):
            self.meet("stat")
        return self.stat(path, *args, **kwargs)

    def opened(self, path, mode="r", *args, **kwargs):
        file = self.open(path, mode, *args, **kwargs)
        return Half(file, self) if self.on and mode == "xb" else file

    def meet(self, _what) -> None:
        if not self.on:
            return
        self.count += 1
        if self.count - 1 == self.at:
            self.strike()

    def strike(self) -> None:
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        self.on = self.how != "interrupt"  # cleaning up after Ctrl-C is not disturbed once more
        if self.how == "interrupt":
            raise KeyboardInterrupt
        number = getattr(errno, self.how)
        raise OSError(number, os.strerror(number))


class Half:
    """A file of which a write may stop in the middle."""

    def __init__(self, file, injector) -> None:
        self.file, self.injector = file, injector

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, content):
        if self.injector.on:
            self.injector.count += 1
            if self.injector.count - 1 == self.injector.at:
                self.file.write(content[: len(content) // 2])
                self.file.flush()
                self.injector.strike()
        return self.file.write(content)


def act(what: str, folder: Path) -> int:
    """Save or read, and say how that ended."""
    try:
        if what == "read":
            assert read(folder, "test")["name"] == "old"
        else:
            write(folder, "test", NEW)
    except vhat.StoreError as error:
        return SAID if len(str(error).split()) > 3 else RAW
    except KeyboardInterrupt:
        return SAID
    except BaseException as error:
        builtins.print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return RAW
    return DONE


def left(folder: Path) -> str:
    """What a reader finds."""
    try:
        found = read(folder, "test")
    except vhat.StoreError as error:
        return "nothing" if "holds no model" in str(error) else f"broken: {error}"
    wanted = {"old": OLD, "new": NEW}[found["name"]]
    return found["name"] if np.array_equal(found["w"], wanted["w"]) else "mixed"


def prepared(what: str, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if what != "first":
        write(folder, "test", OLD)
        (folder / "notes.txt").write_text("mine")


def one(injector: Injector, what: str, how: str, at: int, folder: Path) -> tuple[bool, str]:
    """Let one call fail; return whether there was such a call, and what is wrong."""
    prepared(what, folder)
    child = os.fork()
    if child == 0:
        injector.at, injector.how, injector.count, injector.on = at, how, 0, True
        code = act(what, folder)
        injector.on = False
        os._exit(code if injector.count > at else 100 + code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code >= 100:
        return False, "" if code == 100 else f"undisturbed it ended with {code - 100}"
    state = left(folder)
    allowed = {"first": {"nothing", "new"}, "over": {"old", "new"}, "read": {"old"}}[what]
    wrong = []
    if state not in allowed:
        wrong.append(f"left {state}")
    if code == RAW or (code < 0 and how != "kill"):
        wrong.append(f"ended with {code}")
    if code == DONE and what != "read" and state != "new":
        wrong.append(f"said that it had saved, and left {state}")
    if what != "first" and (folder / "notes.txt").read_text() != "mine":
        wrong.append("changed a file of the user's")
    try:
        write(folder, "test", LATER)
        if read(folder, "test")["name"] != "later":
            wrong.append("a later save is not what is read")
    except vhat.StoreError as error:
        wrong.append(f"a later save is refused: {error}")
    return True, "; ".join(wrong)


def main(root: str, *ways: str) -> None:
    """Go through all calls, for each of these ways to fail."""
    folder = Path(root) / "model"
    write(folder, "test", OLD)  # imports what is imported late
    read(folder, "test")
    injector = Injector(folder)
    found: dict[str, int] = {}
    wrong = []
    for what in ("over", "first", "read"):
        for how in ways:
            for at in range(1000):
                there, fault = one(injector, what, how, at, folder)
                if fault:
                    wrong.append(f"{what}, {how} at call {at}: {fault}")
                if not there:
                    break
            found[f"{what} {how}"] = at
    builtins.print(json.dumps({"calls": found, "wrong": wrong}))


if __name__ == "__main__":
    main(*sys.argv[1:])
