"""The weighted norm ``V(x) = |J h|^2 / n`` of a prediction, ``h = (H + lam)^-1 grad f(x)``, with a record per row.

For a general loss, sample weights w and noise ``sigma_ib`` of row i and output b,

    V = 1/n sum_i sum_b (sigma_ib / sigma)^2 u_ib^2,      u_ib = sum_a (J h)_ia  w_i d2l/df_a dy_b.

Here ``sigma`` is the noise level that the interval reports. V has no unit, and ``sigma sqrt(V/n)`` is the standard
deviation of the prediction to first order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from operator import length_hint
from typing import Any

import numpy as np

from vhat.errors import Interrupted
from vhat.linalg.solvers import Prepared, Status
from vhat.linalg.solvers.cost import points_together
from vhat.linalg.solvers.interface import STATUS_DTYPE, FromInputs, Norms, NormsFromInputs, Response, Stopped, contract
from vhat.models.problem import Array, Problem
from vhat.progress import bar

__all__ = [
    "MOSTLY",
    "GradientBlocks",
    "Measured",
    "Recorder",
    "WeightedNorm",
    "gradient_blocks",
    "hardly_supported",
    "join_measured",
    "measure",
    "row_curvature",
    "shown_share",
    "support_threshold",
]

MOSTLY = 0.5
"""Unsupported share above which a prediction is determined by weight decay rather than by data."""
SOFTENED = -4.0
"""Value of ``unsupported`` below which the residual curvature R cancels more than four fifths of the data's curvature
along h. The share then says nothing about the data: with a data part of 1e-5, lam = 1e-4 and R = -1.09e-4 it is -9, and
the Gauss-Newton share 0.91. Between this value and 0 the data support the prediction. In 48 fits of tanh networks (lam
from 1e-2 to 1e-5, 13,320 predictions) it was never below -3.5. For the 326 predictions below -0.5, the Gauss-Newton
share was 0.05 in the median and 0.40 at most. With refits under redrawn noise (three of these fits, 40 refits each),
95% intervals covered 97 to 100% there: the standard error is too large rather than too small."""


def hardly_supported(unsupported: np.ndarray, most: Any = MOSTLY, usual: float = 0.0) -> np.ndarray:
    """Return which predictions have so little support in the training data that they should not be used.

    These are predictions whose unsupported share is above ``most``, and predictions for which the residual curvature
    cancels almost all of the data's curvature (``unsupported`` below -4). Values from -4 to 0 count as supported: there
    the Hessian has little curvature, and intervals are correspondingly wide.

    Args:
        unsupported: ``h'(R + lam)h / g'h``, see :class:`WeightedNorm`; NaN gives False.
        most: Largest acceptable share, a number or one per prediction; 1 and above accepts every share.
        usual: The share at training rows, from which ``most`` is counted: 0, except for the ridge refit of a linearised
            model. With 0.8 there, ``most=0.5`` requires a support of 0.1, half of that of training rows. NaN if
            unknown: no share is then too large.

    Examples:
        >>> hardly_supported(np.array([0.9, 0.2, -2.0, -9.0]))
        array([ True, False, False,  True])
        >>> hardly_supported(np.array([0.85, 0.95]), usual=0.8)
        array([False,  True])
    """
    most = np.asarray(most)
    too_little = unsupported > support_threshold(usual, most)
    cancelled = (unsupported < SOFTENED) & (most < 1)
    found: np.ndarray = too_little | cancelled
    return found


def support_threshold(usual: float, most: Any = MOSTLY) -> Any:
    """Return the value of ``unsupported`` above which less than ``1 - most`` of the usual support is left."""
    return usual + most * (1.0 - usual)


def shown_share(unsupported: Any) -> np.ndarray:
    """Return ``unsupported`` as a share between 0 and 1, for display.

    Values from -4 to 0 are shown as 0: the data support the prediction fully. Values below -4, which
    :func:`hardly_supported` counts as unsupported, are shown as 1.
    """
    share = np.asarray(unsupported)
    return np.where(share < SOFTENED, 1.0, np.clip(share, 0.0, 1.0))


@dataclass(frozen=True)
class WeightedNorm:
    """V at each point, with the record of its solve. Shapes are (points,) or (points, outputs).

    Attributes:
        value: V; NaN if the status is not ``converged``. If the training rows determine less than 1e-12 of a
            prediction's freedom (``V < 1e-12 g'h``: ``unsupported`` is 1 to twelve digits), V is practically zero and
            only its magnitude is known.
        unsupported: ``h'(R + lam)h / g'h``, which is ``1 - V/g'h`` for the squared loss: the share of the prediction's
            freedom that no training row determines. Near 1 the error of the prediction is bias, which V does not
            contain. For a linearised model it is the share with which the ridge penalty keeps the refit at the model's
            own prediction, which is not bias; more than a half is usual for wide networks, also at training rows. Below
            0 the residual curvature R is negative along h: V is larger than with the data's curvature alone, and the
            interval wide. It does not mean more support than full support, and printed tables show 0. Values below 0 do
            not occur for Gauss-Newton. Below -4 R cancels almost all of the data's curvature, and the prediction counts
            as not supported.
        status: How each solve ended, a :class:`vhat.Status` value.
        residual: True relative residual of each solve.
        steps: Iterations of each solve.
        curvature: ``"hessian"`` or ``"ggn"``.
        solver: The solver's name.
    """

    value: np.ndarray
    unsupported: np.ndarray
    status: np.ndarray
    residual: np.ndarray
    steps: np.ndarray
    curvature: str
    solver: str

    def __repr__(self) -> str:
        good = int(np.sum(self.status == Status.CONVERGED))
        return (
            f"WeightedNorm of {self.value.size} predictions ({self.curvature}, {self.solver}, {good} converged): "
            f"value {_spread(self.value)}, unsupported {_spread(self.unsupported)}"
        )


def _spread(values: np.ndarray) -> str:
    finite = values[np.isfinite(values)]
    return f"{finite.min():.3g} to {finite.max():.3g}" if finite.size else "not finite"


@dataclass(frozen=True)
class Measured:
    """Results of one pass over right-hand sides, flat over rows (points x outputs).

    Attributes:
        variance: ``1/n sum sigma_ib^2 u_ib^2``, (rows,).
        unsupported: See :class:`WeightedNorm`.
        bias: ``h' diag(lam) theta``: the first-order effect of the penalty.
        offset: ``h' (grad L + diag(lam) theta)``: excess of the value over its value at the minimum, to first order.
        shortcut: ``g'h``, the value of V for an interpolating fit.
        sensitivity: ``-u / n = d q / d y``, (rows, n, K), if requested; else None.
        status: Status of each row.
        residual: True residual of each row.
        steps: Iterations of each row.
    """

    variance: np.ndarray
    unsupported: np.ndarray
    bias: np.ndarray
    offset: np.ndarray
    shortcut: np.ndarray
    sensitivity: np.ndarray | None
    status: np.ndarray
    residual: np.ndarray
    steps: np.ndarray


@dataclass(frozen=True)
class GradientBlocks:
    """The gradient rows of test points in blocks, each computed when the iteration reaches it.

    Attributes:
        problem: The training problem.
        inputs: Checked inputs.
        starts: First point of each block; the step of the range is the size of a block.
    """

    problem: Problem
    inputs: Any
    starts: range

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Array]:
        for inputs in self.inputs_of_blocks():
            yield self.problem.gradients(inputs)

    def inputs_of_blocks(self) -> Iterator[Any]:
        """Yield the inputs of each block."""
        for start in self.starts:
            stop = min(start + self.starts.step, self.starts.stop)
            yield self.problem.take(self.inputs, start, stop)


def gradient_blocks(problem: Problem, inputs: Any, first: int = 0) -> GradientBlocks:
    """Return the gradient rows of test points from number ``first`` on, in blocks that fit the memory budget."""
    return GradientBlocks(problem, inputs, range(first, problem.count(inputs), points_together(problem)))


def measure(
    problem: Problem, prepared: Prepared, blocks: Iterable[Array], sigma: np.ndarray, *, rows: bool = False
) -> Measured:
    """Solve for every right-hand side and return the norms.

    Args:
        problem: The training problem.
        prepared: The solver.
        blocks: Right-hand sides, p-space (k, p) each.
        sigma: Noise of each training response, (n, K).
        rows: Whether to return the sensitivities, (rows, n, K).

    Raises:
        Stopped: On Ctrl-C, with the results of the rows that are finished.
    """
    parts: list[Measured] = []
    # Such a solver takes the inputs instead of the gradients, and more points together.
    if isinstance(blocks, GradientBlocks) and isinstance(prepared, FromInputs):
        return _measure_inputs(problem, prepared, blocks.inputs, sigma, rows)
    try:
        with bar("points", length_hint(blocks)) as advance:
            if isinstance(blocks, GradientBlocks) and isinstance(prepared, NormsFromInputs) and not rows:
                for inputs in blocks.inputs_of_blocks():
                    parts.append(_measured(prepared.norms_at(inputs, sigma)))
                    advance("")
                return join_measured(parts)
            for g in blocks:
                parts.append(_measure_block(problem, prepared, g, sigma, rows))
                advance("")
    except KeyboardInterrupt as stop:
        # Rows of the finished blocks, and the finished rows of the interrupted one.
        finished = np.arange(sum(len(part.status) for part in parts))
        if isinstance(stop, Stopped) and isinstance(stop.partial, Measured):
            finished = np.concatenate([finished, len(finished) + stop.rows])
            parts.append(stop.partial)
        raise Stopped(finished, join_measured(parts) if parts else None) from None
    return join_measured(parts)


def _measure_inputs(problem: Problem, prepared: FromInputs, inputs: Any, sigma: np.ndarray, rows: bool) -> Measured:
    """Return the norms of predictions, by a solver that needs no gradients of length p.

    Raises:
        Stopped: On Ctrl-C, with the results of the rows that are finished.
    """
    parts: list[Measured] = []
    count = problem.count(inputs)
    starts = range(0, count, prepared.inputs_together)
    try:
        with bar("points", len(starts)) as advance:
            for start in starts:
                found = prepared.respond_at(problem.take(inputs, start, min(start + prepared.inputs_together, count)))
                sensitivity = -contract(found.image, problem.loss_derivatives.cross) / problem.n if rows else None
                parts.append(_measured(Norms.of(problem, found, sigma), sensitivity))
                advance("")
    except KeyboardInterrupt:
        finished = np.arange(sum(len(part.status) for part in parts))
        raise Stopped(finished, join_measured(parts) if parts else None) from None
    return join_measured(parts)


def join_measured(parts: list[Measured]) -> Measured:
    """Return the results of consecutive blocks as one."""

    def column(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else np.concatenate(values)

    return Measured(**{field.name: column(field.name) for field in fields(Measured)})


_NUMBERS = ("variance", "unsupported", "bias", "offset", "shortcut", "residual")
"""Fields of :class:`Measured` with one float per row."""


def _among_all_rows(total: int, stop: Stopped) -> Measured:
    """Return the finished rows among all ``total`` rows; the others are NaN with the status ``interrupted``."""

    def column(name: str, empty: Any, kind: Any = float) -> np.ndarray:
        values = np.full(total, empty, dtype=kind)
        if stop.partial is not None:
            values[stop.rows] = getattr(stop.partial, name)
        return values

    numbers = {name: column(name, np.nan) for name in _NUMBERS}
    status = column("status", Status.INTERRUPTED.value, STATUS_DTYPE)
    steps = column("steps", 0, int)
    return Measured(sensitivity=None, status=status, steps=steps, **numbers)


@dataclass(frozen=True)
class Recorder:
    """Converts results to the record that the user receives.

    Attributes:
        level: The noise level that is the unit of V, broadcastable to ``shape``.
        shape: (points,), (points, outputs) or ().
        curvature: ``"hessian"`` or ``"ggn"``.
        solver: The solver's name.
        row_curvature: c of :func:`row_curvature`, for a record of ``c g'h`` in place of V; None for V.
    """

    level: np.ndarray
    shape: tuple[int, ...]
    curvature: str
    solver: str
    row_curvature: np.ndarray | None = None

    def record(self, found: Measured) -> WeightedNorm:
        """Return the record of all rows."""
        shape = self.shape
        c = self.row_curvature
        if c is None:
            value = found.variance.reshape(shape) / self.level**2
        else:
            value = found.shortcut.reshape(shape) * (c if len(shape) > 1 else c[0])
        return WeightedNorm(
            value=value,
            unsupported=found.unsupported.reshape(shape),
            status=found.status.reshape(shape),
            residual=found.residual.reshape(shape),
            steps=found.steps.reshape(shape),
            curvature=self.curvature,
            solver=self.solver,
        )

    def interrupt(self, stop: Stopped) -> Interrupted:
        """Return the exception for Ctrl-C, with the record of the rows that are finished."""
        total = int(np.prod(self.shape))
        keep = " To keep them: except vhat.Interrupted as stop: stop.record" if stop.rows.size else ""
        record = self.record(_among_all_rows(total, stop))
        return Interrupted(f"{stop.rows.size} of {total} predictions were finished.{keep}", record)

    @contextmanager
    def keeping(self, found: Measured | None = None) -> Iterator[None]:
        """Context manager that gives Ctrl-C outside of the solves a record too: of ``found``, or of no rows."""
        try:
            yield
        except Interrupted:
            raise
        except KeyboardInterrupt:
            rows = np.arange(0 if found is None else len(found.status))
            raise self.interrupt(Stopped(rows, found)) from None


def row_curvature(problem: Problem) -> np.ndarray:
    """Return ``c``, the weighted mean over the rows of the second derivative of the loss, (K,).

    It is 1 for half the squared error without weights. It has the unit of the loss, the weights and the response, so
    that ``c g'h`` has no unit.
    """
    curvature = problem.loss_derivatives.curvature
    if curvature.ndim == 3:
        curvature = np.diagonal(curvature, axis1=1, axis2=2)
    return np.average(curvature, axis=0, weights=problem.numpy(problem.weights))


def _measure_block(problem: Problem, prepared: Prepared, g: Array, sigma: np.ndarray, rows: bool) -> Measured:
    """Return the norms of one block of right-hand sides."""
    try:
        if rows:
            found = prepared.respond(g)
            sensitivity = -contract(found.image, problem.loss_derivatives.cross) / problem.n
            return _measured(Norms.of(problem, found, sigma), sensitivity)
        return _measured(prepared.norms(g, sigma))
    except Stopped as stop:
        if isinstance(stop.partial, Response):
            partial = _measured(Norms.of(problem, stop.partial, sigma))
        elif isinstance(stop.partial, Norms):
            partial = _measured(stop.partial)
        else:
            raise
        raise Stopped(stop.rows, partial) from None


def _measured(found: Norms, sensitivity: np.ndarray | None = None) -> Measured:
    """Return norms in the form of :class:`Measured`, with NaN for failed solves."""
    failed = found.status != Status.CONVERGED
    # A prediction that no parameter changes (g = 0) has no variance: its support is zero, and its error is bias.
    support = np.divide(found.supported, found.energy, out=np.zeros_like(found.energy), where=found.energy != 0)
    return Measured(
        variance=np.where(failed, np.nan, found.variance),
        unsupported=np.where(failed, np.nan, 1.0 - support),
        bias=np.where(failed, np.nan, found.pull),
        offset=np.where(failed, np.nan, found.pull + found.slope),
        shortcut=np.where(failed, np.nan, found.energy),
        sensitivity=sensitivity,
        status=found.status,
        residual=found.residual,
        steps=found.steps,
    )
