"""One half width for every input of a sphere or a box at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from vhat import bounds
from vhat.bounds.covers import log_grid
from vhat.bounds.formulas import FORMULAS, nonnegative, positive
from vhat.checks import check_choice, check_count, check_delta
from vhat.errors import InputError, NotConverged
from vhat.evidence.audit import Verdict
from vhat.intervals.fit_record import find_noise
from vhat.intervals.guarantee import assumed_minimum, noise_law
from vhat.intervals.largest_norm import Box, Largest, Region, find_largest, read_region
from vhat.intervals.prepare import at_minimum, ready
from vhat.intervals.tail import Tail
from vhat.level import level_text
from vhat.linalg.solvers import Prepared, Solver, Status
from vhat.models.linear_head import HeadAutodiff
from vhat.models.lipschitz import steepness
from vhat.models.problem import Problem
from vhat.variance.noise import Noise
from vhat.variance.ridge_refit import RidgeRefit
from vhat.variance.weighted_norm import gradient_blocks, measure
from vhat.variance.workspace import Chosen, Workspace

__all__ = ["UniformBound", "find_uniform"]

_MOST_SEARCHED = 20
"""Number of columns up to which the search finds the largest V of a linear model to 1%; with 100 it found 42% of it."""
_MANY_COLUMNS = " and may be far too small in so many columns"


@dataclass(frozen=True, eq=False)
class UniformBound:
    """A half width for all inputs of a region at once, with its parts.

    Attributes:
        half_width: The half width: ``at_cover + lipschitz eps``.
        at_cover: The bound at the points of the cover.
        eps: Largest distance of an input to the nearest of them.
        log_cover: Logarithm of their number.
        norm: The largest V that was found over the region, a lower estimate of the supremum.
        where: The input at which it was found, (d,).
        search: The method of the search, in words.
        lipschitz: The Lipschitz constant of the gap that was used.
        lipschitz_source: Where it comes from.
        noise: Standard deviation of y.
        noise_source: Where it comes from.
        delta: Probability of a miss anywhere in the region.
        bound: The bound at the points of the cover.
        guarantee: What the half width is for and what it rests on.

    Examples:
        >>> import numpy as np, vhat
        >>> X = np.random.default_rng(0).normal(size=(50, 2))
        >>> y = X @ [1.0, -1.0] + 0.1 * np.random.default_rng(1).normal(size=50)
        >>> q = np.linalg.lstsq(X, y, rcond=None)[0]
        >>> fitted = vhat.from_numpy(lambda q, x: x @ q, q, X, y, jac=lambda x: x)
        >>> found = fitted.uniform(0.05, lipschitz=1.0, noise=0.1)
        >>> f"{found.half_width:.2f} = {found.at_cover:.2f} + {found.lipschitz * found.eps:.3f}"
        '0.10 = 0.10 + 0.002'
    """

    half_width: float
    at_cover: float
    eps: float
    log_cover: float
    norm: float
    where: np.ndarray
    search: str
    lipschitz: float
    lipschitz_source: str
    noise: float
    noise_source: str
    delta: float
    bound: str
    guarantee: str = field(repr=False)


class _Lipschitz(NamedTuple):
    """A Lipschitz constant of the gap, and where it comes from."""

    value: float
    source: str


def find_uniform(
    work: Workspace,
    delta: float,
    *,
    region: Any,
    lipschitz: float | str,
    eps: float | None,
    bound: str,
    tail: Tail | None,
    noise: Any,
    solver: Solver | str,
    curvature: str,
    seed: int,
) -> UniformBound:
    """Compute the half width: the arguments are those of :meth:`vhat.FittedModel.uniform`.

    Raises:
        InputError: For options that cannot be used, several outputs, or inputs that are not one array of columns.
        NotConverged: When V could not be computed at some points of the region.
    """
    delta = check_delta(delta)
    check_count("seed", seed)
    check_choice("bound", bound, tuple(FORMULAS))
    if tail is not None and (not isinstance(tail, Tail) or tail.two_moments):
        raise InputError(f"tail={tail!r} cannot be used here. Use None, vhat.Tail(v, c) or vhat.Tail.relative(v, c).")
    work = work.for_solver(solver)
    problem = work.problem
    if problem.outputs > 1:
        raise InputError(f"uniform() is for one output; this model has {problem.outputs}. Make a model of each.")
    where = read_region(region, _dimension(problem))
    constant = _gap_lipschitz(problem, lipschitz)

    chosen, prepared = ready(work, solver, curvature, 1)
    level = find_noise(work, noise, chosen, seed)
    stationary = at_minimum(work, level, chosen, seed).verdict
    largest = find_largest(lambda x: _norms(problem, prepared, level, x), where, seed)

    sigma = float(level.level[0])
    radius = _radius(eps, sigma, problem.n, constant.value, where)
    v, c = (0.0, 0.0) if tail is None else (float(part) for part in tail.pair(largest.value))
    df = None if level.df is None else float(level.df[0])
    shared: dict[str, Any] = {"lipschitz": constant.value, "eps": radius, "bound": bound, "v": v, "c": c, "df": df}
    if isinstance(where, Box):
        sides = where.upper - where.lower
        width = float(bounds.uniform_box(largest.value, problem.n, sigma, delta, sides=sides, **shared))
        log_cover = float(log_grid(sides, radius))
    else:
        width = float(bounds.uniform(largest.value, problem.n, sigma, delta, dimension=where.d, **shared))
        log_cover = where.d * float(np.log(3 / radius))
    return UniformBound(
        half_width=width,
        at_cover=width - constant.value * radius,
        eps=radius,
        log_cover=log_cover,
        norm=largest.value,
        where=largest.at,
        search=largest.told,
        lipschitz=constant.value,
        lipschitz_source=constant.source,
        noise=sigma,
        noise_source=level.source,
        delta=delta,
        bound=bound,
        guarantee=_sentence(where, delta, bound, tail, constant, level, largest, chosen, stationary, work.refit),
    )


def _dimension(problem: Problem) -> int:
    """Return the number of input columns.

    Raises:
        InputError: For inputs that are not one array (n,) or (n, d).
    """
    if isinstance(problem.autodiff, HeadAutodiff):
        raise InputError(
            "uniform() covers a region of inputs, and a model of parameters='last' is a function of the inputs of its "
            "last layer. Give it the whole model."
        )
    parts = problem.X if isinstance(problem.X, tuple) else (problem.X,)
    shape = tuple(getattr(parts[0], "shape", ()))
    if len(parts) != 1 or len(shape) not in (1, 2):
        raise InputError("uniform() needs inputs that are one array, (n,) or (n, d): a sphere or a box of R^d.")
    return 1 if len(shape) == 1 else int(shape[1])


def _norms(problem: Problem, prepared: Prepared, level: Noise, x: np.ndarray) -> np.ndarray:
    """Return V at points (m, d)."""
    parts = problem.X if isinstance(problem.X, tuple) else (problem.X,)
    flat = len(parts[0].shape) == 1
    inputs = problem.inputs(x[:, 0] if flat else x)
    found = measure(problem, prepared, gradient_blocks(problem, inputs), level.values)
    failed = int(np.sum(found.status != Status.CONVERGED))
    if failed:
        kind = Status(found.status[found.status != Status.CONVERGED][0])
        raise NotConverged(f"V has no value at {failed} of {len(x)} points of the region ({kind}): {kind.remedy}.")
    return np.asarray(found.variance / level.level[0] ** 2)


def _gap_lipschitz(problem: Problem, asked: float | str) -> _Lipschitz:
    """Return a Lipschitz constant of ``x -> f(x; theta_hat) - E f(x; theta_hat)``: twice that of the predictor."""
    if not isinstance(asked, str):
        value = float(nonnegative("lipschitz", asked))
        return _Lipschitz(value, "given")
    check_choice("lipschitz", asked, ("weights", "objective"))
    steep = steepness(problem)
    if steep is None:
        raise InputError(
            f"lipschitz={asked!r} is for networks of vhat.fit whose layers are all trained and whose columns are not "
            "transformed. Give lipschitz=, a number that bounds the slope of x -> f(x) - E f(x): twice that of f, "
            "where fits under other noise are no steeper."
        )
    if asked == "weights":
        return _Lipschitz(2 * steep.unit * steep.weights, f"twice the product of the norms of {steep.layers} layers")
    own = problem.in_model_units()
    lam = float(np.min(own.numpy(own.decay)))
    if lam <= 0:
        raise InputError("lipschitz='objective' needs weight decay on every parameter. Use 'weights', or a number.")
    objective = own.objective() + own.penalty()
    value = steep.unit * steep.slopes * float(bounds.lipschitz_gap(objective, lam, steep.layers))
    return _Lipschitz(value, f"the penalised objective {objective:.3g} and {steep.layers} layers")


def _radius(eps: float | None, sigma: float, n: int, lipschitz: float, region: Region) -> float:
    """Return the radius of the cover: by default ``sigma / (n lipschitz)``, at most the size of the region."""
    if eps is not None:
        return float(positive("eps", eps))
    most = float(np.linalg.norm(region.upper - region.lower)) / 2 if isinstance(region, Box) else 1.0
    if most == 0:
        return 1.0
    return min(most, sigma / (n * lipschitz)) if lipschitz > 0 else most


def _sentence(
    region: Region,
    delta: float,
    bound: str,
    tail: Tail | None,
    constant: _Lipschitz,
    level: Noise,
    largest: Largest,
    chosen: Chosen,
    stationary: Verdict,
    refit: RidgeRefit | None,
) -> str:
    """Compose the guarantee."""
    assumed = [
        f"the largest V over the region to be the largest that was found ({largest.told}), which is a lower estimate"
        f"{_MANY_COLUMNS if region.d > _MOST_SEARCHED else ''}",
        "V in place of its mean E[V]",
        "that V does not vary with the noise (v = c = 0)" if tail is None else "the tail of V that was supplied",
    ]
    if constant.source == "given":
        assumed.append("the Lipschitz constant that was given, for every draw of the noise")
    else:
        assumed.append(f"a Lipschitz constant from {constant.source}, as if fits under other noise were no steeper")
    assumed.append(f"{noise_law(refit)}, its level {level.source}")
    assumed.append(chosen.span or "one minimum that moves continuously with the noise")
    if chosen.curvature == "ggn" and not chosen.span:
        assumed.append("Gauss-Newton in place of the exact Hessian")
    if stationary != "holds":
        assumed.insert(0, assumed_minimum(stationary))
    return (
        f"Nominal {level_text(delta)} at all inputs of {region.told} at once, for the mean of the prediction over "
        f"fresh noise, not the truth behind it, by the '{bound}' bound over a cover; assumed: {', '.join(assumed)}."
    )
