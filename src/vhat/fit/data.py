"""Checks of the data of one or many fits: shapes, finite values, and scales that a network can learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vhat.checks import as_numbers, check_count, check_finite, check_targets, check_weights
from vhat.errors import InputError
from vhat.models.networks import Network

__all__ = ["Fits", "check_fits", "each_fit"]

_LARGEST = 1e6
"""Largest absolute value of a column. A network starts with weights of order one and trains in float32: it does not
reach larger values."""
_LEAST_VARIATION = 1e-5
"""Least range of a column that is not constant, relative to its largest value: less is lost in float32 rounding."""


@dataclass(frozen=True, eq=False)
class Fits:
    """The training data of F fits; the rows are shared.

    Attributes:
        X: Rows, (n, inputs).
        y: Responses of each fit, (F, n, K).
        weights: Row weights of each fit, (F, n).
        seeds: One seed per fit.
    """

    X: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)
    seeds: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.seeds)

    def take(self, at: Sequence[int]) -> Fits:
        """Return some of the fits."""
        return Fits(self.X, self.y[list(at)], self.weights[list(at)], tuple(self.seeds[k] for k in at))


def check_fits(
    network: Network, X: Any, y: Any, *, seeds: Sequence[int], sample_weights: Any = None, targets: Any = None
) -> Fits:
    """Return the data of many fits as float64 arrays, after checking them against the network.

    Args:
        network: The network.
        X: Rows, (n, inputs), shared by all fits.
        y: Responses, (n,) or (n, outputs).
        seeds: One seed per fit.
        sample_weights: Row weights of each fit, (F, n); None for equal weights.
        targets: Responses of each fit, (F, n) or (F, n, outputs), in place of ``y``.

    Raises:
        InputError: When the data cannot be used, naming the rows, the columns or the fit.
    """
    rows = _check_rows(network, X)
    outputs = network.widths[-1]
    shape = (len(rows),) if outputs == 1 else (len(rows), outputs)
    every = each_fit(y, seeds, sample_weights, targets)
    responses = [_check_one(fit, len(every), check_targets, target, shape) for fit, (_, target, _) in enumerate(every)]
    weights = [
        _check_one(fit, len(every), check_weights, weight, len(rows)) for fit, (_, _, weight) in enumerate(every)
    ]
    _check_scale("X", rows)
    # Without targets of their own, all fits have the same responses.
    for response in responses if targets is not None else responses[:1]:
        _check_scale("y", response)
    return Fits(rows, np.stack(responses), np.stack(weights), tuple(seed for seed, _, _ in every))


def each_fit(y: Any, seeds: Sequence[int], sample_weights: Any, targets: Any) -> list[tuple[int, Any, Any]]:
    """Return the seed, responses and weights (or None) of each fit; see :func:`check_fits` for the arguments.

    Raises:
        InputError: When there is no seed, or the number of weights or targets differs from that of the seeds.
    """
    if np.ndim(seeds) != 1 or not len(seeds):
        raise InputError(f"seeds={seeds!r} is not a list of seeds: give one a fit, such as seeds=range(10).")
    for seed in seeds:
        check_count("seeds", seed)
    responses: list[Any] = [y] * len(seeds)
    if targets is not None:
        responses = _split_by_fit("targets", targets, len(seeds))
    weights: list[Any] = [None] * len(seeds)
    if sample_weights is not None:
        weights = _split_by_fit("sample_weights", sample_weights, len(seeds))
    return [(int(seed), each, weight) for seed, each, weight in zip(seeds, responses, weights, strict=True)]


def _split_by_fit(name: str, values: Any, fits: int) -> list[Any]:
    """Return one array per fit.

    Raises:
        InputError: When the number of arrays differs from that of the fits.
    """
    array = as_numbers(name, values)
    if array.ndim < 2 or len(array) != fits:
        raise InputError(
            f"{name} has shape {array.shape}; there are {fits} seeds, so give one row of it a fit, ({fits}, rows)."
        )
    return list(array)


def _check_one(fit: int, fits: int, check: Any, *arguments: Any) -> np.ndarray:
    """Return the checked array of one fit.

    Args:
        fit: Number of the fit, for the message if there are several.
        fits: Number of fits.
        check: The check.
        *arguments: Its arguments.

    Raises:
        InputError: That of the check.
    """
    try:
        checked: np.ndarray = check(*arguments)
    except InputError as error:
        raise InputError(f"fit {fit}: {error}" if fits > 1 else str(error)) from None
    return checked


def _check_rows(network: Network, X: Any) -> np.ndarray:
    """Return the rows as numbers, after checking them against the network's inputs.

    Raises:
        InputError: When the shape is wrong, there are fewer than two rows, or a value is not finite.
    """
    rows = as_numbers("X", X)
    inputs = network.widths[0]
    if rows.ndim != 2 or rows.shape[1] != inputs:
        remedy = " Give X[:, None]." if rows.ndim == 1 and inputs == 1 else ""
        raise InputError(f"X has shape {rows.shape}; this network takes (rows, {inputs}).{remedy}")
    if len(rows) < 2:
        found = "no rows" if not len(rows) else "one row"
        raise InputError(f"X has {found}: there is nothing to learn a function from. Give at least two rows.")
    check_finite("X", rows)
    return rows


def _check_scale(name: str, columns: np.ndarray) -> None:
    """Refuse columns with values too large for a network, or with too little variation for float32.

    Raises:
        InputError: Naming the column, its scale, and the remedy.
    """
    for column, values in enumerate(columns.T):
        largest = float(np.abs(values).max())
        spread = float(np.ptp(values))
        where = f"{name} in column {column}" if columns.shape[1] > 1 else name
        if largest > _LARGEST:
            problem = f"holds values up to {largest:.1e}, far beyond what a network with weights of order one reaches"
        elif 0 < spread < _LEAST_VARIATION * largest:
            problem = f"varies by no more than {spread:.1e} around {largest:.1e}, too little for training in float32"
        else:
            continue
        raise InputError(
            f"{where} {problem}. Standardise it: subtract the mean, divide by the standard deviation, and transform "
            "predictions back (vhat.NetworkRegressor does)."
        )
