"""From weighted norms to intervals: options, noise, bound, points at once, target, bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vhat import bounds
from vhat.checks import as_numbers, check_choice, check_count, check_delta
from vhat.errors import InputError
from vhat.intervals.estimated_tail import EstimatedTail, Redraws
from vhat.intervals.guarantee import Evidence, sentence
from vhat.intervals.interval import Interval
from vhat.intervals.tail import Tail
from vhat.variance.noise import Noise
from vhat.variance.weighted_norm import MOSTLY, Measured

__all__ = ["BOUNDS", "Options", "Standing", "build"]

BOUNDS = ("tight", "theorem", "sharp", "empirical", "chebyshev", "asymptotic", "isoperimetric")
MODERATE = Tail.relative(0.5, 0.25)
"""The tail that the isoperimetric bound assumes where none is given: that of a chi-square with eight degrees of freedom
over eight. V's relative standard deviation at certified minima was 0.18 to 0.36 in the median."""
_NAMED_TAILS = ("constant", "any")
"""Tails of the isoperimetric bound that have no numbers: V does not vary, or nothing is assumed of how it does."""
_DRAWS = 40_000


@dataclass(frozen=True)
class Options:
    """The options of an interval, checked where they are made."""

    delta: float = 0.05
    simultaneous: bool | str = False
    bound: str = "tight"
    tail: Tail | EstimatedTail | Redraws | str | None = None
    target: str = "mean"
    observation_noise: Any = None
    bias: Any = None
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", check_delta(self.delta))
        check_count("seed", self.seed)
        check_choice("bound", self.bound, BOUNDS)
        check_choice("target", self.target, ("mean", "observation"))
        self._check_simultaneous()
        if self.simultaneous == "sup-t" and self.bound != "asymptotic":
            raise InputError(
                f"simultaneous='sup-t' is the quantile of correlated normals: it goes with bound='asymptotic', not "
                f"{self.bound!r}. Use simultaneous=True for the union bound."
            )
        if isinstance(self.tail, str) and self.tail == "estimated":
            object.__setattr__(self, "tail", Redraws())
        self._check_tail()
        if self.tail is not None and self.bound in ("asymptotic", "chebyshev"):
            raise InputError(f"bound={self.bound!r} takes no tail; leave tail=None.")
        if self.tail is None and self.bound == "empirical":
            raise InputError("bound='empirical' bounds E[V] by the tail of V: give tail=vhat.Tail(v, c).")
        if self.observation_noise is not None and self.target != "observation":
            raise InputError("observation_noise goes with target='observation'.")
        self._check_added()

    def _check_tail(self) -> None:
        """Refuse a tail that is not known, or that this bound cannot use."""
        named = isinstance(self.tail, str) and self.tail in _NAMED_TAILS
        if self.tail is not None and not named and not isinstance(self.tail, Tail | EstimatedTail | Redraws):
            raise InputError(
                f"tail={self.tail!r} is not known. Use None, 'estimated', 'constant', 'any', vhat.Tail(v, c), "
                "vhat.Tail.relative(v, c) or vhat.Tail.sd(share)."
            )
        moments = isinstance(self.tail, Tail) and self.tail.two_moments
        if (named or moments) and self.bound != "isoperimetric":
            raise InputError(
                f"tail={self.tail!r} goes with bound='isoperimetric', not with {self.bound!r}. Give vhat.Tail(v, c) or "
                "vhat.Tail.relative(v, c)."
            )

    def _check_simultaneous(self) -> None:
        if isinstance(self.simultaneous, bool | np.bool_):
            object.__setattr__(self, "simultaneous", bool(self.simultaneous))
        elif not isinstance(self.simultaneous, str) or self.simultaneous not in ("union", "sup-t"):
            raise InputError(f"simultaneous={self.simultaneous!r} is not known. Use False, True ('union') or 'sup-t'.")

    def _check_added(self) -> None:
        """Bring what widens the interval to numbers; their shape is held against the interval's own later."""
        if isinstance(self.bias, str):
            check_choice("bias", self.bias, ("plug-in",))
        elif self.bias is not None:
            bias = as_numbers("bias", self.bias)
            if not (np.all(np.isfinite(bias)) and np.all(bias >= 0)):
                raise InputError("bias must be 'plug-in', or a bound on |bias|: finite and not negative.")
            object.__setattr__(self, "bias", bias)
        if self.observation_noise is not None:
            fresh = as_numbers("observation_noise", self.observation_noise)
            if not (np.all(np.isfinite(fresh)) and np.all(fresh > 0)):
                raise InputError(
                    "observation_noise must be positive and finite: the standard deviation of a new response."
                )
            object.__setattr__(self, "observation_noise", fresh)

    @property
    def joint(self) -> str:
        """How points are taken together: not at all, by the union bound, or by sup-t."""
        return "" if self.simultaneous is False else "union" if self.simultaneous is True else str(self.simultaneous)


@dataclass(frozen=True)
class Standing:
    """What is known of the fit that the interval rests on."""

    curvature: str
    solver: str
    reason: str
    stationary: bool
    definite: str
    decided: bool
    moved: float | None
    subject: str
    undetermined: float | None = None


def build(
    measured: Measured,
    center: np.ndarray,
    noise: Noise,
    reference: np.ndarray,
    df: np.ndarray | None,
    n: int,
    options: Options,
    standing: Standing,
    inputs: np.ndarray | None = None,
    index: Any = None,
) -> Interval:
    """Make an interval.

    Args:
        measured: Norms, flat over rows.
        center: Predictions, in the shape of the result.
        noise: The noise of the training responses.
        reference: The noise level of each row of the result, broadcastable to ``center``.
        df: Residual degrees of freedom of each row, broadcastable to ``center``; None when the noise was given.
        n: Training rows.
        options: The options.
        standing: The evidence of the fit.
        inputs: The points, to keep for plotting.
        index: The labels of the points, where they were a data frame.
    """
    shape = center.shape
    reference = np.broadcast_to(reference, shape)
    norm = measured.variance.reshape(shape) / reference**2
    width = _half_width(measured, norm, noise, reference, df, n, options)
    width = width + _bias(measured, options, shape)
    tail = _known_tail(options)
    evidence = Evidence(
        delta=options.delta,
        points=center.size,
        joint=options.joint,
        bound=options.bound,
        tail=_kind_of(tail, options.bound),
        noise=noise.source,
        curvature=standing.curvature,
        reason=standing.reason,
        stationary=standing.stationary,
        definite=standing.definite,
        decided=standing.decided,
        target=options.target,
        bias="" if options.bias is None else "plug-in" if isinstance(options.bias, str) else "given",
        moved=standing.moved,
        subject=standing.subject,
        df=None if noise.df is None else float(np.min(noise.df)),
        shape="the same in every row" if noise.uniform else "independent, its size in each row as described",
        redraws=tail.redraws if isinstance(tail, EstimatedTail) else 0,
        lost=tail.lost if isinstance(tail, EstimatedTail) else 0,
        unsupported=int(np.sum(measured.unsupported > MOSTLY)),
        undetermined=standing.undetermined,
    )
    return Interval(
        center=center,
        lower=center - width,
        upper=center + width,
        half_width=width,
        standard_error=reference * np.sqrt(norm / n),
        weighted_norm=norm,
        unsupported=measured.unsupported.reshape(shape),
        noise=_plain(noise.level),
        noise_source=noise.source,
        df=None if noise.df is None else _plain(noise.df),
        status=measured.status.reshape(shape),
        delta=options.delta,
        bound=options.bound,
        tail=tail,
        target=options.target,
        curvature=standing.curvature,
        solver=standing.solver,
        guarantee=sentence(evidence),
        inputs=inputs,
        index=index,
        undetermined=standing.undetermined,
    )


def _known_tail(options: Options) -> Tail | EstimatedTail | str | None:
    """Return the tail in use: what was asked for by redraws has been estimated by now."""
    assert not isinstance(options.tail, Redraws)
    if options.tail is None and options.bound == "isoperimetric":
        return MODERATE
    return options.tail


def _kind_of(tail: Tail | EstimatedTail | str | None, bound: str) -> str:
    """Return how the guarantee calls a tail."""
    if tail is None:
        return "neglected"
    if isinstance(tail, str):
        return tail
    if isinstance(tail, EstimatedTail):
        return "estimated"
    if bound == "isoperimetric" and tail == MODERATE:
        return "moderate"
    return "supplied"


def _plain(values: np.ndarray) -> float | np.ndarray:
    return float(values[0]) if values.shape == (1,) else values


def _half_width(
    measured: Measured,
    norm: np.ndarray,
    noise: Noise,
    reference: np.ndarray,
    df: np.ndarray | None,
    n: int,
    options: Options,
) -> np.ndarray:
    """The half width before bias: mean or observation, one point or all."""
    delta = options.delta / norm.size if options.joint == "union" else options.delta
    fresh = _fresh_noise(noise, reference, options) if options.target == "observation" else None
    if options.bound == "asymptotic":
        error = reference * np.sqrt(norm / n)
        spread = error if fresh is None else np.sqrt(error**2 + fresh**2)
        if options.joint == "sup-t":
            return _sup_t(measured, noise, fresh, df, options) * spread
        return bounds.asymptotic(1.0, 1, 1.0, delta, df=df) * spread
    if options.bound == "isoperimetric":
        return _isoperimetric(norm, n, reference, fresh, df, delta, _known_tail(options))

    def mean(d: float) -> np.ndarray:
        return _bound(norm, n, reference, d, options)

    return mean(delta) if fresh is None else bounds.observation(mean, fresh, delta)


def _bound(norm: np.ndarray, n: int, reference: np.ndarray, delta: float, options: Options) -> np.ndarray:
    if options.bound == "chebyshev":
        return bounds.chebyshev(norm, n, reference, delta)
    tail = _known_tail(options)
    assert not isinstance(tail, str)  # refused by Options
    v, c = (0.0, 0.0) if tail is None else tail.pair(norm)
    formula = getattr(bounds, options.bound)
    width: np.ndarray = formula(norm, n, reference, delta, v=v, c=c)
    return width


def _isoperimetric(
    norm: np.ndarray,
    n: int,
    reference: np.ndarray,
    fresh: np.ndarray | None,
    df: np.ndarray | None,
    delta: float,
    tail: Tail | EstimatedTail | str | None,
) -> np.ndarray:
    """Return the half widths of the isoperimetric bound, the noise of a new response and of its estimate included."""
    v: Any = 0.0
    c: Any = 0.0
    sd = None
    if tail == "any":
        v = np.inf
    elif isinstance(tail, Tail) and tail.two_moments:
        sd = tail.pair(norm)[0]
    elif isinstance(tail, Tail | EstimatedTail):
        v, c = tail.pair(norm)
    added = 0.0 if fresh is None else fresh
    return bounds.isoperimetric(norm, n, reference, delta, v=v, c=c, sd=sd, observation_noise=added, df=df)


def _fresh_noise(noise: Noise, reference: np.ndarray, options: Options) -> np.ndarray:
    """The noise of a new response at each point."""
    if options.observation_noise is None:
        if not noise.uniform:
            raise InputError(
                "the training rows have noise of different sizes, so the noise of a new response is not known: give "
                "observation_noise=, one number or one a point."
            )
        return reference
    return _spread("observation_noise", options.observation_noise, reference.shape)


def _spread(name: str, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Spread a number, or numbers in the shape of the interval, over it; nothing is guessed about a single axis."""
    if len(shape) == 2 and values.ndim == 1 and values.size > 1:
        points, outputs = shape
        raise InputError(
            f"{name} has shape {values.shape}, which leaves open whether it is one number a point or one an output of "
            f"the ({points}, {outputs}) interval. Give shape ({points}, 1), (1, {outputs}) or ({points}, {outputs})."
        )
    try:
        return np.broadcast_to(values, shape)
    except ValueError:
        raise InputError(f"{name} has shape {values.shape}; the interval has shape {shape}.") from None


def _sup_t(
    measured: Measured, noise: Noise, fresh: np.ndarray | None, df: np.ndarray | None, options: Options
) -> float:
    """The 1 - delta quantile of the largest of the correlated (Student) normals, by simulation.

    The gap at a is ``sum_ib s_ib(a) sigma_ib z_ib`` with ``s`` the sensitivities, so that the correlation of two
    points is the inner product of their scaled sensitivities.
    """
    good = np.isfinite(measured.variance) & ((measured.variance > 0) | (fresh is not None))
    if not good.any():
        return 0.0
    assert measured.sensitivity is not None  # asked for by the caller together with sup-t
    rows = (measured.sensitivity * noise.values)[good].reshape(int(good.sum()), -1)
    covariance = rows @ rows.T
    if fresh is not None:
        covariance = covariance + np.diag(fresh.ravel()[good] ** 2)
    size = np.sqrt(np.diag(covariance))
    values, vectors = np.linalg.eigh(covariance / np.outer(size, size))
    # the symmetric root: eigenvectors of one eigenvalue turn with the last digit, and the draws would with them
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    rng = np.random.default_rng(options.seed)
    largest = np.concatenate(
        [np.abs(root @ rng.standard_normal((len(root), _DRAWS // 10))).max(axis=0) for _ in range(10)]
    )
    if df is not None:
        least = float(np.min(df))
        largest = largest / np.sqrt(rng.chisquare(least, largest.shape) / least)
    found = float(np.quantile(largest, 1 - options.delta, method="higher"))
    # the simulated quantile lies between that of one point and the union bound over all, whatever delta is
    fewest = None if df is None else float(np.min(df))
    alone, union = (float(bounds.asymptotic(1.0, 1, 1.0, options.delta / k, df=fewest)) for k in (1, int(good.sum())))
    return min(max(found, alone), union)


def _bias(measured: Measured, options: Options, shape: tuple[int, ...]) -> np.ndarray:
    """What is added for bias: nothing, the plug-in ``|h' diag(lam) theta|``, or the user's own bound."""
    if options.bias is None:
        return np.zeros(shape)
    if isinstance(options.bias, str):
        return np.abs(measured.bias).reshape(shape)
    return _spread("bias", options.bias, shape)
