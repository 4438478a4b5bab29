"""Full-batch training of one or many networks in one compiled loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from vhat.errors import ModelError, name_rows
from vhat.fit.data import Fits
from vhat.fit.objective import Fit, inner, value_and_gradient, vectorise_fits
from vhat.models.networks import Network, Params
from vhat.progress import bar, note_descent

__all__ = [
    "CHUNK",
    "Rule",
    "Schedule",
    "Snapshot",
    "Trace",
    "Trained",
    "alignment",
    "run",
]

CHUNK = 500
"""Steps in one compiled call. Between two calls progress is shown and divergence is detected."""
_MANY_ROWS = 256
"""Number of rows from which rows of weight zero are left out of a fit. With fewer, the arithmetic saved is not worth
another compilation."""
_TENTHS = 10
"""The number of rows in use is rounded up to a multiple of n / 10, so that few different sizes are compiled."""


class Snapshot(NamedTuple):
    """Diagnostics of a fit after a chunk of steps.

    Attributes:
        loss: ``L``.
        objective: ``L_lam = L + lam/2 |theta|^2``.
        gradient_norm: ``|grad L_lam|``.
        implied_decay: ``-<grad L, theta>/|theta|^2``, which is lam at a minimum of ``L_lam``.
        size: ``|theta|``.
    """

    loss: float
    objective: float
    gradient_norm: float
    implied_decay: float
    size: float


class Rule(Protocol):
    """An optimiser as pure functions.

    A rule is hashable and holds no decay or learning rate, so that one compilation serves all of them.
    """

    def init(self, params: Params) -> Any:
        """Return the first state; it has an attribute ``params``."""

    def prepare(self, network: Network, fit: Fit, state: Any) -> Any:
        """Return the state with which a chunk of steps starts."""

    def step(self, network: Network, fit: Fit, state: Any, rate: Any) -> Any:
        """Return the state after one step."""


Schedule = Callable[[Sequence[Snapshot]], np.ndarray | None]
"""A function from the snapshots after each chunk so far to the learning rates of the next chunk; None ends the fit."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Diagnostics during training, one entry after every few hundred steps.

    Attributes:
        steps: Steps taken, (k,).
        loss: ``L``, (k,).
        objective: ``L_lam``, (k,).
        gradient_norm: ``|grad L_lam|``, (k,).
        implied_decay: ``-<grad L, theta>/|theta|^2``, (k,): lam at a minimum of ``L_lam``.
        alignment: ``|grad L + lam theta| / (lam |theta|)``, (k,): relative error of ``grad L = -lam theta``. It bounds
            ``|implied_decay/lam - 1|``. NaN if lam is 0.
    """

    steps: np.ndarray
    loss: np.ndarray = field(repr=False)
    objective: np.ndarray = field(repr=False)
    gradient_norm: np.ndarray = field(repr=False)
    implied_decay: np.ndarray = field(repr=False)
    alignment: np.ndarray = field(repr=False)


@dataclass(frozen=True, eq=False)
class Trained:
    """Parameters at the end of training, and the trace of the training.

    Attributes:
        params: NumPy arrays in the structure of ``network.init``.
        trace: Diagnostics during training.
    """

    params: Params = field(repr=False)
    trace: Trace


def run(
    network: Network,
    rule: Rule,
    fits: Fits,
    schedules: Sequence[Schedule],
    *,
    decay: float,
    dtype: str = "float32",
    label: str = "training",
    chunks: int = 0,
) -> list[Trained]:
    """Train every fit by ``rule`` until its schedule ends.

    Fits do not affect each other: a fit ends at the same parameters alone or with others.

    Args:
        network: The network; fit k starts from ``network.init(seed k)``.
        rule: The optimiser.
        fits: The data of all fits.
        schedules: One per fit. All fits that continue must ask for the same number of steps.
        decay: lam.
        dtype: ``"float32"`` or ``"float64"``.
        label: Name of the progress bar.
        chunks: Largest number of chunks of steps, for the progress bar; 0 if it is not known.

    Returns:
        Parameters of ``dtype`` and traces, one per fit.

    Raises:
        ModelError: When a loss is no longer finite.
    """
    sizes = np.array([_rows_in_use(weights) for weights in fits.weights])
    if np.ptp(sizes):
        # Arrays of one compiled call have one size: train the fits of each size together.
        trained: dict[int, Trained] = {}
        for size in np.unique(sizes):
            members = np.flatnonzero(sizes == size).tolist()
            own = [schedules[k] for k in members]
            found = run(network, rule, fits.take(members), own, decay=decay, dtype=dtype, label=label, chunks=chunks)
            trained |= dict(zip(members, found, strict=True))
        return [trained[k] for k in range(len(fits))]
    # The flag is scoped, and set both ways: a caller's global x64 does not change a float32 fit.
    with jax.enable_x64(dtype == "float64"), bar(label, chunks) as advance:
        cast = partial(jnp.asarray, dtype=dtype)
        data = Fit(cast(fits.X), cast(fits.y), cast(fits.weights), cast(decay))
        rows = _used_rows(fits.weights, int(sizes[0]))
        first = [rule.init(jax.tree.map(cast, network.init(seed))) for seed in fits.seeds]
        states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *first)
        history: list[list[Snapshot]] = [[] for _ in schedules]
        steps: list[list[int]] = [[] for _ in schedules]
        while any((rates := _next_rates(schedules, history)).active):
            states, snapshots = _advance(
                network, rule, vectorise_fits(), states, data, rows, cast(rates.values), rates.active
            )
            columns = [np.asarray(column, np.float64) for column in snapshots]
            for k in np.flatnonzero(rates.active):
                before = steps[k][-1] if steps[k] else 0
                history[k].append(Snapshot(*(float(column[k]) for column in columns)))
                steps[k].append(before + rates.values.shape[1])
            _refuse_diverged(label, history, steps)
            advance(_note([each[-1] for each in history], decay))
        params = jax.tree.map(np.array, states.params)
    # The progress record holds one descent: that of the first fit.
    note_descent([snapshot.objective for snapshot in history[0]], steps[0][-1] if steps[0] else 0)
    return [
        Trained(jax.tree.map(lambda leaf, k=k: leaf[k], params), _trace(history[k], steps[k], decay))
        for k in range(len(fits))
    ]


def _rows_in_use(weights: np.ndarray) -> int:
    """Return the number of rows that a fit is computed on: those with weight, rounded up to a tenth of all rows.

    A resample of n rows with replacement has 0.63 n different ones. The number depends only on the fit itself, not on
    the fits trained with it. Rounding gives few different numbers, and so few compilations.
    """
    n = len(weights)
    if n < _MANY_ROWS:
        return n
    used = int(np.count_nonzero(weights))
    tenths = max(1, -(-_TENTHS * used // n))
    return min(n, -(-n * tenths // _TENTHS))


def _used_rows(weights: np.ndarray, size: int) -> np.ndarray | None:
    """Return the numbers of ``size`` rows of each fit, (F, size), rows with weight first; None for all rows."""
    if size == weights.shape[1]:
        return None
    return np.argsort(weights == 0, axis=1, kind="stable")[:, :size]


class _Rates(NamedTuple):
    """Learning rates of the next chunk.

    Attributes:
        values: One row per fit, (F, steps); zeros for fits that have ended.
        active: Whether each fit continues, (F,).
    """

    values: np.ndarray
    active: np.ndarray


def _next_rates(schedules: Sequence[Schedule], history: Sequence[Sequence[Snapshot]]) -> _Rates:
    """Return the learning rates of the next chunk from all schedules."""
    scheduled = [schedule(snapshots) for schedule, snapshots in zip(schedules, history, strict=True)]
    length = max((len(rates) for rates in scheduled if rates is not None), default=0)
    values = np.stack([np.zeros(length) if rates is None else rates for rates in scheduled])
    return _Rates(values, np.array([rates is not None and len(rates) > 0 for rates in scheduled]))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _advance(
    network: Network, rule: Rule, vectorised: bool, states: Any, data: Fit, rows: Any, rates: Any, active: Any
) -> tuple[Any, Snapshot]:
    """Take one step for each of a fit's ``rates`` in every active fit; return the states and snapshots of all fits."""

    def one(each: Any) -> tuple[Any, Snapshot]:
        state, y, weights, rows, rates, active = each
        fit = Fit(data.X, y, weights, data.decay)
        if rows is not None:
            # The loss divides by the number of rows in use; the weights correct this to n.
            share = len(rows) / len(y)
            fit = Fit(data.X[rows], y[rows], share * weights[rows], data.decay)

        def steps(state: Any) -> Any:
            prepared = rule.prepare(network, fit, state)
            return jax.lax.scan(lambda now, rate: (rule.step(network, fit, now, rate), None), prepared, rates)[0]

        state = jax.lax.cond(active, steps, lambda state: state, state)
        return state, _snapshot(network, state.params, fit)

    every = (states, data.y, data.weights, rows, rates, active)
    return jax.vmap(one)(every) if vectorised else jax.lax.map(one, every)


def _snapshot(network: Network, params: Params, fit: Fit) -> Snapshot:
    """Return the diagnostics of a fit at ``params``."""
    loss, slope = value_and_gradient(network, params, fit, penalty=False)
    full = jax.tree.map(lambda g, theta: g + fit.decay * theta, slope, params)
    square = inner(params, params)
    return Snapshot(
        loss=loss,
        objective=loss + fit.decay / 2 * square,
        gradient_norm=jnp.sqrt(inner(full, full)),
        implied_decay=-inner(slope, params) / square,
        size=jnp.sqrt(square),
    )


def _refuse_diverged(label: str, history: Sequence[Sequence[Snapshot]], steps: Sequence[Sequence[int]]) -> None:
    """Refuse fits whose objective is no longer finite.

    Raises:
        ModelError: Naming the fits, the loss and the number of steps.
    """
    diverged = [k for k, snapshots in enumerate(history) if snapshots and not math.isfinite(snapshots[-1].objective)]
    if not diverged:
        return
    first = diverged[0]
    which = f" in {name_rows(diverged, noun='fit')}" if len(history) > 1 else ""
    raise ModelError(
        f"the loss was {history[first][-1].loss} after {steps[first][-1]} steps of {label}{which}. Lower "
        "learning_rate, or standardise X and y."
    )


def alignment(snapshot: Snapshot, decay: float) -> float:
    """Return ``|grad L + lam theta| / (lam |theta|)``; NaN if ``lam |theta|`` is zero."""
    pull = decay * snapshot.size
    return snapshot.gradient_norm / pull if pull > 0 else math.nan


def _note(latest: Sequence[Snapshot], decay: float) -> str:
    """Return the text beside the progress bar: mean loss and worst alignment of the fits."""
    loss = float(np.mean([snapshot.loss for snapshot in latest]))
    worst = max(alignment(snapshot, decay) for snapshot in latest)
    text = f"loss {loss:.3e}"
    if len(latest) > 1:
        text = f"{len(latest)} fits, {text}"
    if not math.isnan(worst):
        text += f", alignment {worst:.1e}"
    return text


def _trace(snapshots: Sequence[Snapshot], steps: Sequence[int], decay: float) -> Trace:
    """Return the trace of one fit."""
    return Trace(
        steps=np.array(steps),
        loss=np.array([snapshot.loss for snapshot in snapshots]),
        objective=np.array([snapshot.objective for snapshot in snapshots]),
        gradient_norm=np.array([snapshot.gradient_norm for snapshot in snapshots]),
        implied_decay=np.array([snapshot.implied_decay for snapshot in snapshots]),
        alignment=np.array([alignment(snapshot, decay) for snapshot in snapshots]),
    )
