"""Full-batch training of one or many networks in one compiled loop: the objective, the loop, and what was seen."""

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
from vhat.models.networks import Network, Params
from vhat.progress import bar, note_descent

__all__ = [
    "CHUNK",
    "Fit",
    "Glance",
    "Rule",
    "Schedule",
    "Trace",
    "Trained",
    "alignment",
    "half_mse",
    "inner",
    "penalised",
    "run",
    "value_and_gradient",
]

CHUNK = 500
"""Steps in one compiled call: between two of them progress is shown and divergence is found."""
_MANY_ROWS = 256
"""From here on rows without weight are left out of a fit; below, the arithmetic saved is not worth compiling for."""
_BLOCK_ROWS = 500
"""Rows of a block over which loss and gradient are summed.

Milliseconds of one core for a step of AdamW with 1024 ReLU units in float32 (AMD EPYC), by rows of a block:

======  ======  =====  ====  ====  ====  ====  =====
d       n       whole  128   250   500   667   1000
======  ======  =====  ====  ====  ====  ====  =====
10      1,000   1.5    1.5   1.6   1.55  1.5
10      2,000   4.4          3.2   3.1
10      5,000   12.4         7.4   7.4
10      10,000  32.1   15.8  15.2  14.4  14.9  16.8
100     1,000   10.1   9.1   9.5   9.7   9.9
100     10,000  119    90    86    91    98    93
======  ======  =====  ====  ====  ====  ====  =====

The hidden values of 500 rows are 2 MB, those of 10,000 rows 41 MB, which the cache does not hold between the forward
and the backward pass.
"""
_WHOLE_ROWS = 1000
"""Up to so many rows loss and gradient are computed at once: blocks gain nothing there (see the table above)."""


class Fit(NamedTuple):
    """The data of one fit inside a compiled function: rows, targets (n, K), weights (n,) and lam."""

    X: Any
    y: Any
    weights: Any
    decay: Any


class Glance(NamedTuple):
    """What is looked at between two chunks of steps.

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
    """A descent: hashable and without numbers, so that one compilation serves every decay and rate."""

    def begin(self, params: Params) -> Any:
        """Return the first state; it has ``.params``."""

    def open(self, network: Network, fit: Fit, state: Any) -> Any:
        """Make a state ready for a chunk of steps."""

    def step(self, network: Network, fit: Fit, state: Any, rate: Any) -> Any:
        """Take one step."""


Schedule = Callable[[Sequence[Glance]], np.ndarray | None]
"""From what was seen after each chunk so far to the rates of the next chunk, or None for the end."""


@dataclass(frozen=True, eq=False)
class Trace:
    """What was seen on the way, one entry after every few hundred steps.

    Attributes:
        steps: Steps taken, (k,).
        loss: ``L``, (k,).
        objective: ``L_lam``, (k,).
        gradient_norm: ``|grad L_lam|``, (k,).
        implied_decay: ``-<grad L, theta>/|theta|^2``, (k,): lam at a minimum of ``L_lam``.
        alignment: ``|grad L + lam theta| / (lam |theta|)``, (k,): how far ``grad L = -lam theta`` is from true. It
            bounds ``|implied_decay/lam - 1|``. NaN where lam is 0.
    """

    steps: np.ndarray
    loss: np.ndarray = field(repr=False)
    objective: np.ndarray = field(repr=False)
    gradient_norm: np.ndarray = field(repr=False)
    implied_decay: np.ndarray = field(repr=False)
    alignment: np.ndarray = field(repr=False)


@dataclass(frozen=True, eq=False)
class Trained:
    """Parameters where training ended, and the way there.

    Attributes:
        params: NumPy arrays in the structure of ``network.init``.
        trace: What was seen on the way.
    """

    params: Params = field(repr=False)
    trace: Trace


def half_mse(network: Network, params: Params, fit: Fit) -> Any:
    """``L = 1/(2n) sum_i w_i |f(x_i) - y_i|^2``."""
    residual = network(params, fit.X).reshape(fit.y.shape) - fit.y
    return jnp.sum(fit.weights[:, None] * residual**2) / (2 * len(fit.y))


def penalised(network: Network, params: Params, fit: Fit) -> Any:
    """``L_lam = L + lam/2 |theta|^2``."""
    return half_mse(network, params, fit) + fit.decay / 2 * inner(params, params)


def value_and_gradient(network: Network, params: Params, fit: Fit, *, penalty: bool) -> tuple[Any, Params]:
    """Return the value and the gradient of ``L``, or of ``L_lam`` with ``penalty``, at ``params``.

    Many rows are summed in blocks. How they are split follows from their number alone, so that the last digits do not
    depend on the machine; only accelerators, which want large products, take all rows at once.
    """
    if len(fit.y) <= _WHOLE_ROWS or _together():
        objective = penalised if penalty else half_mse
        return jax.value_and_grad(objective, argnums=1)(network, params, fit)
    value, slope = _loss_in_blocks(network, params, fit)
    if penalty:
        value = value + fit.decay / 2 * inner(params, params)
        slope = jax.tree.map(lambda g, theta: g + fit.decay * theta, slope, params)
    return value, slope


def _loss_in_blocks(network: Network, params: Params, fit: Fit) -> tuple[Any, Params]:
    """Sum ``L`` and its gradient over blocks of nearly ``_BLOCK_ROWS`` rows."""
    n = len(fit.y)
    blocks = -(-n // _BLOCK_ROWS)
    rows = -(-n // blocks)  # blocks of equal size: fewer rows of padding than there are blocks

    def split(array: Any) -> Any:
        # Padding is zeros, so that the padded rows have weight zero.
        padding = [(0, blocks * rows - n)] + [(0, 0)] * (array.ndim - 1)
        return jnp.pad(array, padding).reshape(blocks, rows, *array.shape[1:])

    def add(total: tuple[Any, Params], block: tuple[Any, Any, Any]) -> tuple[tuple[Any, Params], None]:
        part = jax.value_and_grad(half_mse, argnums=1)(network, params, Fit(*block, fit.decay))
        return jax.tree.map(jnp.add, total, part), None

    zero = (jnp.zeros((), fit.y.dtype), jax.tree.map(jnp.zeros_like, params))
    total, _ = jax.lax.scan(add, zero, (split(fit.X), split(fit.y), split(fit.weights)))
    # Each block divided by its own rows; the loss divides by n.
    value, slope = jax.tree.map(lambda leaf: leaf * (rows / n), total)
    return value, slope


def inner(a: Params, b: Params) -> Any:
    """The inner product of two parameter trees."""
    return sum(jnp.sum(u * v) for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


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

    A fit is not touched by its neighbours: alone or in company it ends at the same parameters.

    Args:
        network: The network; fit k starts from ``network.init(seed k)``.
        rule: The descent.
        fits: The data of all fits.
        schedules: One a fit. Those that go on must ask for the same number of steps.
        decay: lam.
        dtype: ``"float32"`` or ``"float64"``.
        label: The name of the progress bar.
        chunks: The most chunks of steps, for the progress bar; 0 where that is not known.

    Returns:
        Parameters of ``dtype`` and traces, one a fit.

    Raises:
        ModelError: When a loss is no longer finite.
    """
    sizes = np.array([_rows_in_use(weights) for weights in fits.weights])
    if np.ptp(sizes):
        ends: dict[int, Trained] = {}
        for size in np.unique(sizes):
            at = np.flatnonzero(sizes == size).tolist()
            own = [schedules[k] for k in at]
            found = run(network, rule, fits.take(at), own, decay=decay, dtype=dtype, label=label, chunks=chunks)
            ends |= dict(zip(at, found, strict=True))
        return [ends[k] for k in range(len(fits))]
    # The flag is scoped, and set both ways: a caller's global x64 does not change a float32 fit.
    with jax.enable_x64(dtype == "float64"), bar(label, chunks) as advance:
        cast = partial(jnp.asarray, dtype=dtype)
        data = Fit(cast(fits.X), cast(fits.y), cast(fits.weights), cast(decay))
        rows = _used_rows(fits.weights, int(sizes[0]))
        begun = [rule.begin(jax.tree.map(cast, network.init(seed))) for seed in fits.seeds]
        states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *begun)
        seen: list[list[Glance]] = [[] for _ in schedules]
        taken: list[list[int]] = [[] for _ in schedules]
        while any((rates := _next_rates(schedules, seen)).active):
            states, looks = _advance(network, rule, _together(), states, data, rows, cast(rates.values), rates.active)
            columns = [np.asarray(column, np.float64) for column in looks]
            for k in np.flatnonzero(rates.active):
                seen[k].append(Glance(*(float(column[k]) for column in columns)))
                taken[k].append(rates.values.shape[1] + (taken[k][-1] if taken[k] else 0))
            _refuse_diverged(label, seen, taken)
            advance(_note([glances[-1] for glances in seen], decay))
        params = jax.tree.map(np.array, states.params)
    note_descent([glance.objective for glance in seen[0]], taken[0][-1] if taken[0] else 0)
    return [
        Trained(jax.tree.map(lambda leaf, k=k: leaf[k], params), _trace(seen[k], taken[k], decay))
        for k in range(len(fits))
    ]


def _rows_in_use(weights: np.ndarray) -> int:
    """How many rows a fit is computed on: those with weight, filled up to a whole number of tenths of all.

    A resample of n rows with replacement has 0.63 n different ones. The number is a fit's own, whoever its neighbours
    are, and few numbers mean few compilations.
    """
    n, used = len(weights), int(np.count_nonzero(weights))
    return n if n < _MANY_ROWS else min(n, -(-n * max(1, -(-10 * used // n)) // 10))


def _used_rows(weights: np.ndarray, size: int) -> np.ndarray | None:
    """Return the first ``size`` rows of each fit, (F, size), those with weight before those without; None for all."""
    return None if size == weights.shape[1] else np.argsort(weights == 0, axis=1, kind="stable")[:, :size]


class _Rates(NamedTuple):
    values: np.ndarray
    active: np.ndarray


def _next_rates(schedules: Sequence[Schedule], seen: Sequence[Sequence[Glance]]) -> _Rates:
    """Ask every schedule; fits that have ended get zeros and are not active."""
    asked = [schedule(glances) for schedule, glances in zip(schedules, seen, strict=True)]
    length = max((len(rates) for rates in asked if rates is not None), default=0)
    values = np.stack([np.zeros(length) if rates is None else rates for rates in asked])
    return _Rates(values, np.array([rates is not None and len(rates) > 0 for rates in asked]))


def _together() -> bool:
    """Whether fits are computed side by side.

    On a processor a vectorised batch of ten fits (d = 10, 1024 units) took 1.2 to 1.5 times the work at n = 100 and 1.5
    to 1.9 times at n = 1000, for it leaves the cache: there one fit follows the other. Accelerators want the batch.
    """
    return jax.default_backend() != "cpu"


@partial(jax.jit, static_argnums=(0, 1, 2))
def _advance(
    network: Network, rule: Rule, together: bool, states: Any, data: Fit, rows: Any, rates: Any, active: Any
) -> tuple[Any, Glance]:
    """Take one step for each of a fit's ``rates`` in every active fit; return the states and a look at each."""

    def one(each: Any) -> tuple[Any, Glance]:
        state, y, weights, rows, rates, active = each
        fit = Fit(data.X, y, weights, data.decay)
        if rows is not None:  # the loss divides by the number of rows that it sees
            share = len(rows) / len(y)
            fit = Fit(data.X[rows], y[rows], share * weights[rows], data.decay)

        def steps(state: Any) -> Any:
            opened = rule.open(network, fit, state)
            return jax.lax.scan(lambda now, rate: (rule.step(network, fit, now, rate), None), opened, rates)[0]

        state = jax.lax.cond(active, steps, lambda state: state, state)
        return state, _look(network, state.params, fit)

    every = (states, data.y, data.weights, rows, rates, active)
    return jax.vmap(one)(every) if together else jax.lax.map(one, every)


def _look(network: Network, params: Params, fit: Fit) -> Glance:
    loss, slope = value_and_gradient(network, params, fit, penalty=False)
    full = jax.tree.map(lambda g, theta: g + fit.decay * theta, slope, params)
    square = inner(params, params)
    return Glance(
        loss=loss,
        objective=loss + fit.decay / 2 * square,
        gradient_norm=jnp.sqrt(inner(full, full)),
        implied_decay=-inner(slope, params) / square,
        size=jnp.sqrt(square),
    )


def _refuse_diverged(label: str, seen: Sequence[Sequence[Glance]], taken: Sequence[Sequence[int]]) -> None:
    lost = [k for k, glances in enumerate(seen) if glances and not math.isfinite(glances[-1].objective)]
    if lost:
        which = f" in {name_rows(lost, noun='fit')}" if len(seen) > 1 else ""
        raise ModelError(
            f"the loss was {seen[lost[0]][-1].loss} after {taken[lost[0]][-1]} steps of {label}{which}. Lower "
            "learning_rate, or standardise X and y."
        )


def alignment(glance: Glance, decay: float) -> float:
    """``|grad L + lam theta| / (lam |theta|)``; NaN where nothing decays."""
    pull = decay * glance.size
    return glance.gradient_norm / pull if pull > 0 else math.nan


def _note(latest: Sequence[Glance], decay: float) -> str:
    """The mean loss and the worst alignment of the fits under way."""
    loss = float(np.mean([glance.loss for glance in latest]))
    worst = max(alignment(glance, decay) for glance in latest)
    fits = f"{len(latest)} fits, " if len(latest) > 1 else ""
    return f"{fits}loss {loss:.3e}" + ("" if math.isnan(worst) else f", alignment {worst:.1e}")


def _trace(seen: Sequence[Glance], taken: Sequence[int], decay: float) -> Trace:
    return Trace(
        steps=np.array(taken),
        loss=np.array([glance.loss for glance in seen]),
        objective=np.array([glance.objective for glance in seen]),
        gradient_norm=np.array([glance.gradient_norm for glance in seen]),
        implied_decay=np.array([glance.implied_decay for glance in seen]),
        alignment=np.array([alignment(glance, decay) for glance in seen]),
    )
