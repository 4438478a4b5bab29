"""The search along a grid of weight decays: fit and score every lam, and keep the best."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from vhat.errors import (
    ConditioningWarning,
    CurvatureWarning,
    InputError,
    Interrupted,
    ModelError,
    VhatError,
    VhatWarning,
    outside,
)
from vhat.fit.decay_path import DecayPath, Path, collect_warnings, gradient_of
from vhat.fit.score_curve import CONVERGED, FAILED, NEARLY_SINGULAR, NOT_A_MINIMUM, ROUGH, Curve, Entry, assemble
from vhat.fit.scoring import Scored, Scoring
from vhat.fit.splits import Part
from vhat.progress import bar

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["Search"]

_STATIONARY = 1e-6
"""Largest relative gradient of a fit that counts as a minimum."""


@dataclass
class Search:
    """The search along the grid.

    Attributes:
        parts: Training sets, with the rows on which they are scored.
        paths: The fits of each training set.
        scoring: The definition of the score.
        lams: The grid, ascending.
        measure: Name of the score.
        entries: Results so far, one per lam.
        failures: Errors of the lams without a score.
        best: The best lam so far.
        stationary: Largest relative gradient of a fit that counts as a minimum.
    """

    parts: list[Part]
    paths: Sequence[DecayPath]
    scoring: Scoring
    lams: np.ndarray
    measure: str
    entries: list[Entry] = field(default_factory=list)
    failures: list[VhatError] = field(default_factory=list)
    best: _Best | None = None
    stationary: float = _STATIONARY

    def curve(self) -> Curve:
        """Return the scores so far."""
        return assemble(self.lams, self.entries, self.measure)

    def run(self) -> None:
        """Fit and score every lam.

        Raises:
            ModelError: When no lam has a score.
            InputError: When all lams failed with the same error of this type.
        """
        with bar("weight decay", len(self.lams)) as advance:
            for lam in self.lams:
                entry = self._entry(float(lam))
                self.entries.append(entry)
                advance(f"lam {lam:.1e}, score {entry.score:.4g}")
        if self.best is None:
            self._refuse()

    def trained(self, path: Path) -> FittedModel:
        """Return the model of the best lam on all rows, and emit the warnings of its fit.

        Args:
            path: Fits on all rows.

        Raises:
            ModelError: When the fit on all rows fails.
        """
        best = self.best
        assert best is not None
        if self.parts[0].share == 1.0:
            # The scored fit was already on all rows.
            for warning in best.warned:
                warnings.warn(warning, stacklevel=outside())
            return best.fitted
        path.params = best.fitted.params
        try:
            return path.fit(best.lam)
        except VhatError as error:
            raise ModelError(
                f"the best of the grid, weight_decay={best.lam:.3g}, could not be refitted on all rows: {error}"
            ) from error

    def _entry(self, lam: float) -> Entry:
        """Fit and score one lam; an error of the fit or the score becomes a remark."""
        gradient = np.nan
        with collect_warnings() as warned:
            try:
                fits = [path.fit(lam) for path in self.paths]
                gradient = max(gradient_of(fitted) for fitted in fits)
                scored = [self._scored(part, fitted) for part, fitted in zip(self.parts, fits, strict=True)]
            except VhatError as error:
                self.failures.append(error)
                return Entry(np.inf, np.nan, gradient, FAILED, str(error))
        mean, error_of_mean = _mean(scored, self.parts)
        if not np.isfinite(mean):
            return Entry(np.inf, np.nan, gradient, FAILED, "the score is not finite: predictions are out of range.")
        if self.best is None or mean <= self.best.score:  # of two equal scores, the larger lam
            self.best = _Best(lam, mean, fits[0], warned)
        # Each remark once, although several folds may have it.
        remarks = [*dict.fromkeys(each.remark for each in scored if each.remark), *(str(each) for each in warned)]
        rough = any(each.rough for each in scored)
        status = _status(gradient > self.stationary, warned, rough)
        return Entry(mean, error_of_mean, gradient, status, " ".join(remarks))

    def _scored(self, part: Part, fitted: FittedModel) -> Scored:
        """Return the scores of the rows that a fit has not used."""
        if part.test is None:
            return self.scoring.of_left_out(fitted)
        return self.scoring.of_rows(fitted, part.test)

    def _refuse(self) -> None:
        """Raise the error for a grid without any score."""
        first = self.failures[0] if self.failures else None
        # An error in the data is the same at every lam: raise it as it is.
        if isinstance(first, InputError) and all(str(each) == str(first) for each in self.failures):
            raise first
        reasons = "; ".join(f"{lam:.3g}: {entry.remark}" for lam, entry in zip(self.lams, self.entries, strict=True))
        raise ModelError(f"no weight_decay of the grid could be scored. {reasons}") from first

    @contextmanager
    def curve_on_interruption(self) -> Iterator[None]:
        """On Ctrl-C, raise ``Interrupted`` with the curve so far."""
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted(
                f"{len(self.entries)} of {len(self.lams)} weight decays were scored. To keep them: except "
                "vhat.Interrupted as stop: stop.record",
                self.curve(),
            ) from None


@dataclass(frozen=True)
class _Best:
    """The best lam so far.

    Attributes:
        lam: The weight decay.
        score: Its mean score.
        fitted: The fit of its first training set.
        warned: Warnings of its fits.
    """

    lam: float
    score: float
    fitted: FittedModel
    warned: list[VhatWarning]


def _status(not_stationary: bool, warned: list[VhatWarning], rough: bool) -> str:
    """Return the status of a lam from its gradient, its warnings and its score."""
    if not_stationary or any(isinstance(each, CurvatureWarning) for each in warned):
        return NOT_A_MINIMUM
    if rough:
        return ROUGH
    if any(isinstance(each, ConditioningWarning) for each in warned):
        return NEARLY_SINGULAR
    return CONVERGED


def _mean(scored: list[Scored], parts: list[Part]) -> tuple[float, float]:
    """Return the weighted mean of all rows' scores and its standard error."""
    tables = [part.train if part.test is None else part.test for part in parts]
    weights = np.concatenate([np.ones(len(t)) if t.weight is None else t.weight for t in tables])
    rows = np.concatenate([each.rows for each in scored])
    mean = float(np.average(rows, weights=weights))
    # Kish's effective number of rows under unequal weights.
    effective = np.sum(weights) ** 2 / np.sum(weights**2)
    spread = float(np.average((rows - mean) ** 2, weights=weights))
    return mean, float(np.sqrt(spread / max(effective - 1, 1.0)))
