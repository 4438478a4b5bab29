"""Facts on the fitted model and on the software, as labels and texts."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

import numpy as np

from vhat.report.numbers import short
from vhat.report.options import Options, Subject
from vhat.report.table import Table

__all__ = ["fit_facts", "versions"]

_MAX_NAMES = 4
"""Number of constant columns that are named."""


def fit_facts(subject: Subject, table: Table, options: Options) -> list[tuple[str, str]]:
    """Return rows, columns, model, weight decay and the course of the fit."""
    fitted = subject.fitted
    problem = fitted.problem
    with problem.scope():
        decay = problem.numpy(problem.decay)
        model = problem.facts()
    constant = [name for j, name in enumerate(table.names) if j not in table.varying]
    columns = f"{len(table.names)}"
    if constant:
        columns += f" ({len(constant)} constant: {_first_names(constant)})"
    facts = [
        ("Training rows", f"{problem.n:,}"),
        ("Columns", columns),
        ("Outputs", f"{problem.outputs}"),
        ("Parameters", f"{problem.p:,}"),
        ("Weight decay λ", _range(decay)),
        *subject.training,
        ("Framework", f"{model.framework}, {model.dtype}"),
    ]
    if fitted.polished is not None:
        record = fitted.polished
        result = f"{record.status}, relative gradient {short(record.relative_gradient, 2)}"
        facts.append(("Search for the minimum", f"{result}, {record.warmup_steps} + {record.steps} steps"))
    facts.append(("Seed of this report", f"{options.seed}"))
    return facts


def versions() -> list[tuple[str, str]]:
    """Return the versions of the software that computed the page. Optional packages are named if they were imported."""
    from vhat import __version__

    imported = [name for name in ("jax", "torch", "sklearn", "pandas") if name in sys.modules]
    packages = ["scikit-learn" if name == "sklearn" else name for name in ["numpy", "scipy", *imported]]
    installed = [(name, metadata.version(name)) for name in packages]
    return [("vhat", __version__), ("Python", platform.python_version()), *installed]


def _range(decay: np.ndarray) -> str:
    """Return the weight decay as text, or its range if it differs between parameters."""
    low = float(decay.min())
    high = float(decay.max())
    if low == high:
        return short(low, 4)
    return f"{short(low, 4)} to {short(high, 4)}"


def _first_names(names: list[str]) -> str:
    """Return the first names, and dots if there are more."""
    listed = ", ".join(names[:_MAX_NAMES])
    return f"{listed} …" if len(names) > _MAX_NAMES else listed
