"""The data of one or many fits, checked once: nothing trains on NaN, on a broadcast or on numbers out of reach."""

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
"""Weights of a network start at order one and training is in float32: numbers beyond this are never met."""
_RESOLVED = 1e-5
"""Changes below this share of a value drown in the rounding of float32."""


@dataclass(frozen=True, eq=False)
class Fits:
    """What each of F fits is trained on; the rows are shared.

    Attributes:
        X: Rows, (n, inputs).
        y: Responses of each fit, (F, n, K).
        weights: Weights of the rows in each fit, (F, n).
        seeds: One seed a fit.
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
    """Check the data of many fits against the network that is to learn them.

    Args:
        network: The network.
        X: Rows, (n, inputs), shared by all fits.
        y: Responses, (n,) or (n, outputs).
        seeds: One seed a fit.
        sample_weights: One row of weights a fit, (F, n); None weighs all rows alike.
        targets: Responses of each fit, (F, n) or (F, n, outputs), in place of ``y``.

    Returns:
        Float64 arrays of the shapes that training takes.

    Raises:
        InputError: Naming what cannot be used, the rows, the columns or the fit.
    """
    rows = _check_rows(network, X)
    outputs = network.widths[-1]
    shape = (len(rows),) if outputs == 1 else (len(rows), outputs)
    every = list(each_fit(y, seeds, sample_weights, targets))
    responses = [_named(fit, len(every), check_targets, target, shape) for fit, (_, target, _) in enumerate(every)]
    weights = [_named(fit, len(every), check_weights, weight, len(rows)) for fit, (_, _, weight) in enumerate(every)]
    _check_size("X", rows)
    for response in responses if targets is not None else responses[:1]:
        _check_size("y", response)
    return Fits(rows, np.stack(responses), np.stack(weights), tuple(seed for seed, _, _ in every))


def each_fit(y: Any, seeds: Sequence[int], sample_weights: Any, targets: Any) -> list[tuple[int, Any, Any]]:
    """Return the seed, responses and weights (or None) of each fit.

    Raises:
        InputError: When there is no seed, or another number of weights or targets than of seeds.
    """
    if np.ndim(seeds) != 1 or not len(seeds):
        raise InputError(f"seeds={seeds!r} is not a list of seeds: give one a fit, such as seeds=range(10).")
    for seed in seeds:
        check_count("seeds", seed)
    responses = [y] * len(seeds) if targets is None else _rows_of("targets", targets, len(seeds))
    weights = [None] * len(seeds) if sample_weights is None else _rows_of("sample_weights", sample_weights, len(seeds))
    return [(int(seed), each, weight) for seed, each, weight in zip(seeds, responses, weights, strict=True)]


def _rows_of(name: str, given: Any, fits: int) -> list[Any]:
    """Return one array a fit."""
    array = as_numbers(name, given)
    if array.ndim < 2 or len(array) != fits:
        raise InputError(
            f"{name} has shape {array.shape}; there are {fits} seeds, so give one row of it a fit, ({fits}, rows)."
        )
    return list(array)


def _named(fit: int, fits: int, check: Any, *arguments: Any) -> np.ndarray:
    """Check one fit's array; with several fits the sentence names the one at fault."""
    try:
        checked: np.ndarray = check(*arguments)
    except InputError as error:
        raise InputError(f"fit {fit}: {error}" if fits > 1 else str(error)) from None
    return checked


def _check_rows(network: Network, X: Any) -> np.ndarray:
    rows, inputs = as_numbers("X", X), network.widths[0]
    if rows.ndim != 2 or rows.shape[1] != inputs:
        remedy = " Give X[:, None]." if rows.ndim == 1 and inputs == 1 else ""
        raise InputError(f"X has shape {rows.shape}; this network takes (rows, {inputs}).{remedy}")
    if len(rows) < 2:
        found = "no rows" if not len(rows) else "one row"
        raise InputError(f"X has {found}: there is nothing to learn a function from. Give at least two rows.")
    check_finite("X", rows)
    return rows


def _check_size(name: str, columns: np.ndarray) -> None:
    """Refuse columns that are too large for a network to meet, or that vary too little for float32 to see.

    Raises:
        InputError: Naming the column, what it holds, and the remedy.
    """
    for column, values in enumerate(columns.T):
        largest, spread = float(np.abs(values).max()), float(np.ptp(values))
        where = f"{name} in column {column}" if columns.shape[1] > 1 else name
        if largest > _LARGEST:
            found = f"holds values up to {largest:.1e}, far beyond what a network with weights of order one reaches"
        elif 0 < spread < _RESOLVED * largest:
            found = f"varies by no more than {spread:.1e} around {largest:.1e}, too little for training in float32"
        else:
            continue
        raise InputError(
            f"{where} {found}. Standardise it: subtract the mean, divide by the standard deviation, and transform "
            "predictions back (vhat.NetworkRegressor does)."
        )
