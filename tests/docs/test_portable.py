"""Nothing that only Unix has is needed: to import, to save and load, to run commands. Simulated on any system."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

import vhat
from tests.docs.portable_walk import HIDDEN
from vhat import progress
from vhat.checks import check_memory
from vhat.store import directory, read, reading, write

SOURCE = Path(vhat.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
UNIX_NAMES = {
    "os": "sysconf sysconf_names fork forkpty getuid geteuid getgid getegid getpgid setsid uname statvfs chown fchown "
    "fchmod mkfifo nice sched_getaffinity sched_setaffinity killpg getloadavg sync O_DIRECTORY O_NOFOLLOW O_NONBLOCK "
    "WIFSIGNALED WTERMSIG wait3 wait4",
    "signal": "SIGPIPE SIGHUP SIGKILL SIGALRM SIGCHLD SIGUSR1 SIGUSR2 SIGQUIT SIGTSTP alarm setitimer pause",
}
ASKED_FOR_FIRST = {("study/worker.py", "sched_getaffinity"), ("study/worker.py", "sched_setaffinity")}
"""Used only after ``hasattr`` has found them."""


@pytest.mark.slow
def test_every_module_and_the_commands_work_without_the_modules_of_unix(tmp_path):
    command = [sys.executable, "-m", "tests.docs.portable_walk", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert f"{len(MODULES) - 1} modules, save, load, fit and predict" in ended.stderr


def test_half_of_the_free_memory_is_known_without_sysconf(monkeypatch):
    with monkeypatch.context() as patch:
        patch.delattr(os, "sysconf", raising=False)
        patch.delattr(os, "sysconf_names", raising=False)
        budget = check_memory(None)
    assert 0 < budget <= psutil.virtual_memory().total // 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages that nothing uses are counted by Linux")
def test_on_linux_the_budget_is_half_of_the_pages_that_nothing_uses():
    free = [check_memory(None) / (os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2) for _ in range(5)]
    assert min(abs(each - 1) for each in free) < 0.05  # others work on this machine between the two measurements


def windows(monkeypatch, busy=0):
    """Open no directory, and refuse to replace or to read the pointer ``busy`` times, as if another had it open."""
    opened, replaced, content = os.open, Path.replace, Path.read_bytes
    left = {"replace": busy, "read": busy}

    def refuse(what, path):
        if left[what]:
            left[what] -= 1
            raise PermissionError(13, "The process cannot access the file", str(path))

    def open_file(path, *args, **kwargs):
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **kwargs)

    def replace(self, target):
        refuse("replace", target)
        return replaced(self, target)

    def read_bytes(self):
        if self.name == "vhat.json":
            refuse("read", self)
        return content(self)

    for module in (directory, reading):
        monkeypatch.setattr(module, "_WINDOWS", True)
    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(Path, "read_bytes", read_bytes)


@pytest.mark.parametrize("busy", [0, 3])
def test_windows_saves_and_loads_while_another_reads(tmp_path, monkeypatch, busy):
    with monkeypatch.context() as patch:
        windows(patch, busy)
        write(tmp_path / "m", "test", {"w": np.arange(3.0)})
        assert np.array_equal(read(tmp_path / "m", "test")["w"], [0, 1, 2])


def test_windows_gives_up_on_a_file_that_stays_open_and_keeps_the_old_model(tmp_path, monkeypatch):
    write(tmp_path, "test", {"n": 1})
    with monkeypatch.context() as patch:
        windows(patch)
        patch.setattr(reading, "_PAUSES", (1e-3, 1e-3))
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
        with pytest.raises(vhat.StoreError, match=r"saving to .* failed: Permission denied"):
            write(tmp_path, "test", {"n": 2})
    assert read(tmp_path, "test") == {"n": 1}


def test_a_program_without_a_console_is_not_stopped_by_progress(monkeypatch):
    """Windows gives ``pythonw`` no standard error."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        progress.announce("long work")
        with progress.bar("work", 2) as advance:
            advance("")


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_the_command_writes_utf8_into_pipes_whose_code_page_lacks_characters(tmp_path, monkeypatch, encoding):
    from vhat.cli import app

    rng = np.random.default_rng(0)
    x = rng.standard_normal(40)
    rows = "".join(f"{a:.6f},{np.sin(a) + 0.1 * b:.6f}\n" for a, b in zip(x, rng.standard_normal(40), strict=True))
    (tmp_path / "data.csv").write_text("größe,τ\n" + rows, encoding="utf-8")
    raw = io.BytesIO()
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    options = ["--target", "τ", "--hidden", "3", "--weight-decay", "0.01", "--out", str(tmp_path / "model")]
    with pytest.raises(SystemExit) as ended:
        app(["fit", str(tmp_path / "data.csv"), *options])
    sys.stdout.flush()
    assert ended.value.code == 0
    said = raw.getvalue().decode("utf-8")
    assert "τ" in said
    assert "größe" in said


def of_kind(path, kind):
    return [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, kind)]


def test_no_module_names_what_windows_lacks():
    found = []
    for path in MODULES:
        own = path.relative_to(SOURCE).as_posix()
        imported = {alias.name for node in of_kind(path, ast.Import) for alias in node.names}
        imported |= {node.module or "" for node in of_kind(path, ast.ImportFrom)}
        found += [(own, name) for name in imported if name.partition(".")[0] in HIDDEN]
        for node in of_kind(path, ast.Attribute):
            owner = getattr(node.value, "id", "")
            if node.attr in UNIX_NAMES.get(owner, "").split() and (own, node.attr) not in ASKED_FOR_FIRST:
                found.append((own, f"{owner}.{node.attr}"))
    assert not found


def test_text_files_have_a_stated_encoding_and_written_ones_stated_line_ends():
    """Otherwise a file has the code page of the machine, and other line ends on Windows."""
    found = []
    for path in MODULES:
        for call in of_kind(path, ast.Call):
            name = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
            modes = [each.value for each in call.args if isinstance(each, ast.Constant)]
            text = name == "open" and len(modes) == len(call.args) and not any("b" in mode for mode in modes)
            needed = {"read_text": {"encoding"}, "write_text": {"encoding", "newline"}}.get(name, set())
            needed = {"encoding"} if text else needed
            if not needed <= {keyword.arg for keyword in call.keywords}:
                found.append(f"{path.relative_to(SOURCE).as_posix()}, line {call.lineno}")
    assert not found
