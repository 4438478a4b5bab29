"""The weighted norm ``V(x) = |J h|^2 / n`` of a prediction, ``h = (H + lam)^-1 grad f(x)``, a record per row.

With a general loss, sample weights and noise ``sigma_ib`` of row i and output b,

    V = 1/n sum_i sum_b (sigma_ib / sigma)^2 u_ib^2,      u_ib = sum_a (J h)_ia  w_i d2l/df_a dy_b,

where ``sigma`` is the noise level that the interval reports, so that V has no unit and ``sigma sqrt(V/n)`` is the
standard deviation of the prediction to first order.
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
from vhat.linalg.solvers.interface import FromInputs, Norms, Response, Stopped, contract
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
"""A prediction of which more than this share is unsupported is decided by weight decay rather than by data."""
SOFTENED = -4.0
"""Below this value of ``unsupported`` the residuals' curvature R cancels more than four fifths of what the data hold
along h, and the share says nothing of the data any more: with a data part of 1e-5, lam = 1e-4 and R = -1.09e-4 it is
-9, and the Gauss-Newton share 0.91. Between this and 0 the data do hold the prediction. In 48 fits of tanh networks
(lam from 1e-2 to 1e-5, 13,320 predictions) it was never below -3.5; for the 326 predictions below -0.5 the Gauss-Newton
share was 0.05 in the median and 0.40 at most, and where refits under redrawn noise were made (three of these fits, 40
refits each) 95% intervals covered 97 to 100% there: the standard error is too large rather than too small."""


def hardly_supported(unsupported: np.ndarray, most: Any = MOSTLY, usual: float = 0.0) -> np.ndarray:
    """Return where the training data hold so little of a prediction that it should not be relied on.

    That is where more than ``most`` of its freedom is unsupported, and where the residuals' curvature leaves next to
    nothing of what the data hold (``unsupported`` below -4). Values from -4 to 0 are supported: the minimum is soft
    there, and intervals are wide for it.

    Args:
        unsupported: ``h'(R + lam)h / g'h``, see :class:`WeightedNorm`; NaN is nowhere.
        most: The largest share that is relied on, a number or one per prediction; 1 and above asks nothing.
        usual: The share at training rows, above which it is counted: 0, except for the ridge refit of a linearised
            model. With 0.8 there, ``most=0.5`` asks for 0.1 of support, half of what training rows have. NaN where it
            is not known: no share is then called too large.

    Examples:
        >>> hardly_supported(np.array([0.9, 0.2, -2.0, -9.0]))
        array([ True, False, False,  True])
        >>> hardly_supported(np.array([0.85, 0.95]), usual=0.8)
        array([False,  True])
    """
    most = np.asarray(most)
    found: np.ndarray = (unsupported > support_threshold(usual, most)) | ((unsupported < SOFTENED) & (most < 1))
    return found


def support_threshold(usual: float, most: Any = MOSTLY) -> Any:
    """Return the value of ``unsupported`` above which less than ``1 - most`` of the usual support is left."""
    return usual + most * (1.0 - usual)


def shown_share(unsupported: Any) -> np.ndarray:
    """Return ``unsupported`` as a share between 0 and 1, for display.

    From -4 to 0 it is 0: the data hold all of the prediction. Below -4, where :func:`hardly_supported` counts it as
    unsupported, it is 1.
    """
    share = np.asarray(unsupported)
    return np.where(share < SOFTENED, 1.0, np.clip(share, 0.0, 1.0))


@dataclass(frozen=True)
class WeightedNorm:
    """V at every point asked about, with the record of its solve. Shapes are (points,) or (points, outputs).

    Attributes:
        value: V; NaN where the status is not ``converged``. Where training rows pin down less than 1e-12 of a
            prediction's freedom (``V < 1e-12 g'h``: ``unsupported`` is 1 to twelve digits), V is as good as zero and
            only its size is known.
        unsupported: ``h'(R + lam)h / g'h``, which is ``1 - V/g'h`` for the square loss: the share of this
            prediction's freedom that no training row pins down. Near 1, the error there is bias, and V is silent.
            Of a linearised model it is the share at which the ridge penalty keeps the refit at the model's own
            prediction, which is no bias; above half of it is usual for wide networks, also at training rows.
            Below 0, the residuals' own curvature R is negative along h and softens the minimum: V is more than the data
            alone would give, and the interval wide. That is not "more than all data", and printed tables show 0 there;
            never so for Gauss-Newton. Below -4 R cancels nearly all that the data hold, and the prediction is counted
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
    """What one pass over right-hand sides gives, flat over rows (points x outputs).

    Attributes:
        variance: ``1/n sum sigma_ib^2 u_ib^2``, (rows,).
        unsupported: See :class:`WeightedNorm`.
        bias: ``h' diag(lam) theta``: the first-order effect of the penalty.
        offset: ``h' (grad L + diag(lam) theta)``: how far the value is above that of the minimum, to first order.
        shortcut: ``g'h``, what V would be at interpolation.
        sensitivity: ``-u / n = d q / d y``, (rows, n, K), when asked for.
        status: One status a row.
        residual: One true residual a row.
        steps: Iterations a row.
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
    """The gradient rows of test points, block by block, each made when it is its turn.

    Attributes:
        problem: The training problem.
        inputs: Checked inputs.
        starts: Where each block starts; the step of the range is its size.
    """

    problem: Problem
    inputs: Any
    starts: range

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Array]:
        for start in self.starts:
            stop = min(start + self.starts.step, self.starts.stop)
            yield self.problem.gradients(self.problem.take(self.inputs, start, stop))


def gradient_blocks(problem: Problem, inputs: Any) -> GradientBlocks:
    """Return the gradient rows of test points in blocks that fit the memory budget."""
    return GradientBlocks(problem, inputs, range(0, problem.count(inputs), points_together(problem)))


def measure(
    problem: Problem, prepared: Prepared, blocks: Iterable[Array], sigma: np.ndarray, *, rows: bool = False
) -> Measured:
    """Solve for every right-hand side and take the norm of each.

    Args:
        problem: The training problem.
        prepared: The solver.
        blocks: Right-hand sides, p-space (k, p) each.
        sigma: Noise of each training response, (n, K).
        rows: Keep the sensitivities, (rows, n, K).

    Raises:
        Stopped: On Ctrl-C, with what was measured of the rows that are finished.
    """
    parts: list[Measured] = []
    if isinstance(blocks, GradientBlocks) and isinstance(prepared, FromInputs):
        return _measure_inputs(problem, prepared, blocks.inputs, sigma, rows)
    try:
        with bar("points", length_hint(blocks)) as advance:
            for g in blocks:
                parts.append(_measure_block(problem, prepared, g, sigma, rows))
                advance("")
    except KeyboardInterrupt as stop:
        finished = np.arange(sum(len(part.status) for part in parts))
        if isinstance(stop, Stopped) and isinstance(stop.partial, Measured):
            finished = np.concatenate([finished, len(finished) + stop.rows])
            parts.append(stop.partial)
        raise Stopped(finished, join_measured(parts) if parts else None) from None
    return join_measured(parts)


def _measure_inputs(problem: Problem, prepared: FromInputs, inputs: Any, sigma: np.ndarray, rows: bool) -> Measured:
    """Measure predictions with a solver that needs no gradient of length p.

    Raises:
        Stopped: On Ctrl-C, with what was measured of the rows that are finished.
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
    """Put what was measured of consecutive blocks together."""

    def column(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else np.concatenate(values)

    return Measured(**{field.name: column(field.name) for field in fields(Measured)})


_NUMBERS = ("variance", "unsupported", "bias", "offset", "shortcut", "residual")


def _spread_over(total: int, stop: Stopped) -> Measured:
    """Set the rows that were finished among all that were asked for: the others are NaN and ``interrupted``."""

    def column(name: str, empty: Any, kind: Any = float) -> np.ndarray:
        values = np.full(total, empty, dtype=kind)
        if stop.partial is not None:
            values[stop.rows] = getattr(stop.partial, name)
        return values

    numbers = {name: column(name, np.nan) for name in _NUMBERS}
    status, steps = column("status", Status.INTERRUPTED.value, "U13"), column("steps", 0, int)
    return Measured(sensitivity=None, status=status, steps=steps, **numbers)


@dataclass(frozen=True)
class Recorder:
    """How what is measured becomes the record that a user holds.

    Attributes:
        level: The noise level in whose unit V is expressed, broadcastable to ``shape``.
        shape: (points,), (points, outputs) or ().
        curvature: ``"hessian"`` or ``"ggn"``.
        solver: The solver's name.
        bend: What :func:`row_curvature` finds, to give ``c g'h`` in place of V; None gives V.
    """

    level: np.ndarray
    shape: tuple[int, ...]
    curvature: str
    solver: str
    bend: np.ndarray | None = None

    def record(self, found: Measured) -> WeightedNorm:
        """Return the record of all rows."""
        shape = self.shape
        if self.bend is None:
            value = found.variance.reshape(shape) / self.level**2
        else:
            value = found.shortcut.reshape(shape) * (self.bend if len(shape) > 1 else self.bend[0])
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
        """Return what to raise when Ctrl-C came: its record has the rows that are finished."""
        total = int(np.prod(self.shape))
        keep = " To keep them: except vhat.Interrupted as stop: stop.record" if stop.rows.size else ""
        record = self.record(_spread_over(total, stop))
        return Interrupted(f"{stop.rows.size} of {total} predictions were finished.{keep}", record)

    @contextmanager
    def keeping(self, found: Measured | None = None) -> Iterator[None]:
        """Have Ctrl-C outside of the solves leave a record as well: of what was measured, or that nothing was yet."""
        try:
            yield
        except Interrupted:
            raise
        except KeyboardInterrupt:
            rows = np.arange(0 if found is None else len(found.status))
            raise self.interrupt(Stopped(rows, found)) from None


def row_curvature(problem: Problem) -> np.ndarray:
    """``c``, the second derivative of the loss of one row, its mean over the rows, each counted by its weight, (K,).

    It is 1 for the half squared error of rows that have no weights. It carries the unit of the loss, of the weights and
    of the response: ``c g'h`` has none.
    """
    curvature, weights = problem.loss_derivatives.curvature, problem.numpy(problem.weights)
    own = curvature if curvature.ndim == 2 else np.diagonal(curvature, axis1=1, axis2=2)
    return np.average(own, axis=0, weights=weights)


def _measure_block(problem: Problem, prepared: Prepared, g: Array, sigma: np.ndarray, rows: bool) -> Measured:
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
    """Return norms as they are recorded: NaN where a solve failed, a share where there was a sum."""
    offset = found.pull + found.slope
    # A prediction that no parameter moves (g = 0) has no variance; whatever is wrong with it is bias.
    share = np.divide(found.supported, found.energy, out=np.zeros_like(found.energy), where=found.energy != 0)
    numbers = [found.variance, 1.0 - share, found.pull, offset, found.energy]
    failed = found.status != Status.CONVERGED
    variance, unsupported, bias, offset, energy = (np.where(failed, np.nan, values) for values in numbers)
    return Measured(variance, unsupported, bias, offset, energy, sensitivity, found.status, found.residual, found.steps)
