"""What was fitted, and with what: labels and texts."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

import numpy as np

from vhat.report.numbers import short
from vhat.report.options import Options, Subject
from vhat.report.table import Table

__all__ = ["fit_facts", "versions"]


def fit_facts(subject: Subject, table: Table, options: Options) -> list[tuple[str, str]]:
    """Return rows, columns, model, weight decay and how the fit went."""
    fitted = subject.fitted
    problem = fitted.problem
    with problem.scope():
        decay, model = problem.numpy(problem.decay), problem.facts()
    constant = [name for j, name in enumerate(table.names) if j not in table.varying]
    found = [
        ("Training rows", f"{problem.n:,}"),
        ("Columns", f"{len(table.names)}" + (f" ({len(constant)} constant: {_few(constant)})" if constant else "")),
        ("Outputs", f"{problem.outputs}"),
        ("Parameters", f"{problem.p:,}"),
        ("Weight decay λ", _range(decay)),
        *subject.training,
        ("Model given in", f"{model.framework}, {model.dtype}"),
    ]
    if fitted.polished is not None:
        record = fitted.polished
        reached = f"{record.status}, relative gradient {short(record.relative_gradient, 2)}"
        found.append(("Search for the minimum", f"{reached}, {record.warmup_steps} + {record.steps} steps"))
    found.append(("Seed of this report", f"{options.seed}"))
    return found


def versions() -> list[tuple[str, str]]:
    """Return the versions of what computed this page: frameworks, where they were in use."""
    from vhat import __version__

    names = ["numpy", "scipy", *(name for name in ("jax", "torch", "sklearn", "pandas") if name in sys.modules)]
    known = {"sklearn": "scikit-learn"}
    found = [(known.get(name, name), metadata.version(known.get(name, name))) for name in names]
    return [("vhat", __version__), ("Python", platform.python_version()), *found]


def _range(decay: np.ndarray) -> str:
    low, high = float(decay.min()), float(decay.max())
    return short(low, 4) if low == high else f"{short(low, 4)} to {short(high, 4)}"


def _few(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (" …" if len(names) > most else "")
