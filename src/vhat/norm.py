"""The weighted norm ``V(x) = |J h|^2 / n`` of a prediction, ``h = (H + lam)^-1 grad f(x)``, a record per row.

With a general loss, sample weights and noise ``sigma_ib`` of row i and output b,

    V = 1/n sum_i sum_b (sigma_ib / sigma)^2 u_ib^2,      u_ib = sum_a (J h)_ia  w_i d2l/df_a dy_b,

where ``sigma`` is the noise level that the interval reports, so that V has no unit and ``sigma sqrt(V/n)`` is the
standard deviation of the prediction to first order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from vhat.problem import Array, Problem
from vhat.solve import Prepared, Status

__all__ = ["Measured", "WeightedNorm", "contract", "gradient_blocks", "measure"]

_VECTORS = 10
_WIDEST = 256


@dataclass(frozen=True)
class WeightedNorm:
    """V at every point asked about, with the record of its solve. Shapes are (points,) or (points, outputs).

    Attributes:
        value: V; NaN where the status is not ``converged``.
        unsupported: ``h'(R + lam)h / g'h``, which is ``1 - V/g'h`` for the square loss: the share of this
            prediction's freedom that no training row pins down. Near 1, the error there is bias, and V is silent.
            Below 0, the residuals' own curvature R softens the minimum along h, and V is more than the data alone would
            give; never so for Gauss-Newton.
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
        shortcut: ``g'h``, what V would be at interpolation.
        sensitivity: ``-u / n = d q / d y``, (rows, n, K), when asked for.
        status: One status a row.
        residual: One true residual a row.
        steps: Iterations a row.
    """

    variance: np.ndarray
    unsupported: np.ndarray
    bias: np.ndarray
    shortcut: np.ndarray
    sensitivity: np.ndarray | None
    status: np.ndarray
    residual: np.ndarray
    steps: np.ndarray


def contract(t: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Multiply n-space blocks (k, n, K) by a loss derivative, (n, K) or (n, K, K), over its first output index."""
    return t * weight if weight.ndim == 2 else np.einsum("kia,iab->kib", t, weight)


def gradient_blocks(problem: Problem, inputs: Any) -> Iterator[Array]:
    """Yield the gradient rows of test points in blocks that fit the memory budget."""
    m, K = problem.count(inputs), problem.outputs
    fits = int(problem.memory // (4 * 8 * problem.p * K * _VECTORS))
    block = max(1, min(_WIDEST, fits))
    for start in range(0, m, block):
        yield problem.gradients(problem.take(inputs, start, min(start + block, m)))


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
    """
    parts = [_measure_block(problem, prepared, g, sigma, rows) for g in blocks]
    names = ("variance", "unsupported", "bias", "shortcut", "status", "residual", "steps")
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    kept = np.concatenate([part.sensitivity for part in parts]) if rows else None  # type: ignore[misc]
    return Measured(sensitivity=kept, **joined)


def _measure_block(problem: Problem, prepared: Prepared, g: Array, sigma: np.ndarray, rows: bool) -> Measured:
    loss, found = problem.loss_derivatives, prepared.respond(g)
    u = contract(found.image, loss.cross)
    supported = np.sum(contract(found.image, loss.curvature) * found.image, axis=(1, 2)) / problem.n
    variance = np.sum((sigma * u) ** 2, axis=(1, 2)) / problem.n
    energy, bias = found.energy.copy(), found.pull.copy()
    # A prediction that no parameter moves (g = 0) has no variance; whatever is wrong with it is bias.
    unsupported = 1.0 - np.divide(supported, energy, out=np.zeros_like(energy), where=energy != 0)
    failed = found.status != Status.CONVERGED
    for values in (variance, unsupported, bias, energy):
        values[failed] = np.nan
    return Measured(
        variance,
        unsupported,
        bias,
        energy,
        -u / problem.n if rows else None,
        found.status,
        found.residual,
        found.steps,
    )
