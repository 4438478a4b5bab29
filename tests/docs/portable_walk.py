"""Import every module of vhat, save, load and run commands while what only Unix has is hidden."""

from __future__ import annotations

import builtins
import os
import pkgutil
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import psutil  # noqa: F401  (asks os.sysconf when it is imported here, and another function on Windows)

HIDDEN = frozenset(
    ("fcntl", "resource", "pwd", "grp", "spwd", "termios", "tty", "pty", "syslog", "crypt", "nis", "readline", "posix")
)
NAMES = ("sysconf", "sysconf_names", "statvfs", "sched_getaffinity", "sched_setaffinity", "fork", "O_DIRECTORY")


def hide() -> None:
    """Refuse imports that vhat makes; the standard library of this system and others may go on to use theirs."""
    everything = builtins.__import__

    def some(name, *rest, **more):
        namespace = more.get("globals") or (rest[0] if rest else None) or {}
        importer = namespace.get("__name__") or ""
        if name.partition(".")[0] in HIDDEN and importer.partition(".")[0] == "vhat":
            raise ModuleNotFoundError(f"{importer} imports {name}, which Windows does not have", name=name)
        return everything(name, *rest, **more)

    builtins.__import__ = some
    for name in NAMES:
        delattr(os, name)


def import_all() -> int:
    """Import every module, those that nothing imports at its top too; return their number."""
    import vhat

    found = [module.name for module in pkgutil.walk_packages(vhat.__path__, "vhat.")]
    for name in found:
        import_module(name)
    return len(found)


def save_and_load(folder: Path) -> None:
    import vhat

    x = np.linspace(0.0, 1.0, 30)
    y = 1.0 + 2.0 * x + 0.1 * np.sin(40 * x)
    fitted = vhat.from_curve_fit(line, np.polyfit(x, y, 1)[::-1], x, y)
    fitted.save(folder / "curve")
    fitted.save(folder / "curve")
    loaded = vhat.load(folder / "curve", model=line)
    assert np.array_equal(loaded.interval([0.5]).upper, fitted.interval([0.5]).upper)


def line(x, a, b):
    return a + b * x


def run(*arguments: str) -> None:
    from vhat.cli import app

    code = None
    try:
        app([*arguments])
    except SystemExit as ended:
        code = ended.code
    assert code == 0, f"vhat {' '.join(arguments)} ended with {code}"


def commands(folder: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(40)
    y = np.sin(x) + 0.1 * rng.standard_normal(40)
    rows = "".join(f"{a:.6f},{b:.6f}\n" for a, b in zip(x, y, strict=True))
    (folder / "data.csv").write_text("x,y\n" + rows, encoding="utf-8")
    model = str(folder / "model")
    run("--help")
    run("fit", str(folder / "data.csv"), "--target", "y", "--hidden", "3", "--weight-decay", "0.01", "--out", model)
    run("predict", model, str(folder / "data.csv"), "--out", str(folder / "bands.csv"))
    assert len((folder / "bands.csv").read_text(encoding="utf-8").splitlines()) == 41


if __name__ == "__main__":
    place = Path(sys.argv[1])
    hide()
    number = import_all()
    save_and_load(place)
    commands(place)
    print(f"{number} modules, save, load, fit and predict", file=sys.stderr)
