"""The choice of lam by the mean Winkler score on the validation set, from stored cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vhat.study.cell import Cell, decay_text
from vhat.study.protocol import PUBLISHED_DECAY
from vhat.study.results import Results

__all__ = ["Choice", "choose", "to_markdown"]


@dataclass(frozen=True)
class Choice:
    """The scores of one method at one size, for all decays.

    Attributes:
        first: One of the cells, which differ only in decay and trial.
        scores: Mean validation score at each decay, over the trials that every decay has; None if there is none.
        trials: Number of these trials.
        by_trial: The scores of these trials at each decay.
    """

    first: Cell
    scores: dict[float, float | None]
    trials: int
    by_trial: dict[float, tuple[float, ...]]

    @property
    def best(self) -> float | None:
        """The decay with the smallest score; None unless every decay has a score."""
        known = {lam: score for lam, score in self.scores.items() if score is not None}
        if not known or len(known) < len(self.scores):
            return None
        return min(known, key=known.__getitem__)

    def behind_best(self, lam: float) -> float | None:
        """Return the mean over trials of the score at ``lam`` less that of the best decay, in its standard errors.

        The differences are paired, because both decays have the same data. The result is None for the best decay
        itself, and for fewer than two trials.
        """
        if self.best is None or lam == self.best or self.trials < 2:
            return None
        differences = np.subtract(self.by_trial[lam], self.by_trial[self.best])
        error = float(np.std(differences, ddof=1)) / math.sqrt(self.trials)
        return float(np.mean(differences)) / error if error > 0 else None


def choose(cells: Sequence[Cell], results: Results) -> list[Choice]:
    """Return the scores of every version, dimension, size and method, over the trials that all decays have."""
    groups: dict[Cell, list[Cell]] = {}
    for cell in cells:
        # A cell with fixed trial and decay stands for its group.
        group = Cell(**(cell.config() | {"trial": 0, "lam": 1.0}))
        groups.setdefault(group, []).append(cell)
    return [_choice(group, results) for group in groups.values()]


def _choice(cells: Sequence[Cell], results: Results) -> Choice:
    """Return the scores of one group of cells."""
    scores: dict[float, dict[int, float]] = {}  # by decay, then by trial
    for cell in cells:
        of_decay = scores.setdefault(cell.lam, {})
        result = results.read(cell)
        if result is None or result["status"] != "done":
            continue
        score = result["metrics"]["validation winkler"]
        if score is not None:
            of_decay[cell.trial] = score
    shared = sorted(set.intersection(*(set(of_decay) for of_decay in scores.values())))
    by_trial = {lam: tuple(of_decay[trial] for trial in shared) for lam, of_decay in sorted(scores.items())}
    means = {lam: float(np.mean(values)) if values else None for lam, values in by_trial.items()}
    return Choice(cells[0], means, len(shared), by_trial)


def to_markdown(choices: Sequence[Choice]) -> str:
    """Return the scores as a table with the smallest in bold, and the number of incomplete combinations below."""
    compared = [choice for choice in choices if choice.trials]
    lines = _table(compared) if compared else []
    rest = len(choices) - len(compared)
    if rest:
        kinds = f"{rest} of {len(choices)} combinations of version, d, n and method"
        lines += ["", f"{kinds} have no trial with every lam yet and are left out."]
    return "\n".join(lines)


def _table(choices: Sequence[Choice]) -> list[str]:
    """Return the lines of the table."""
    decays = sorted({lam for choice in choices for lam in choice.scores})
    lines = [
        f"| version | d | n | method | trials | {' | '.join(f'lam = {decay_text(lam)}' for lam in decays)} "
        "| the paper's lam behind the best |",
        f"|---|---|---|---|---|{'---|' * len(decays)}---|",
    ]
    for choice in choices:
        cell = choice.first
        texts = []
        for lam in decays:
            score = choice.scores.get(lam)
            text = "" if score is None else f"{score:.2f}"
            texts.append(f"**{text}**" if lam == choice.best else text)
        behind = choice.behind_best(PUBLISHED_DECAY[cell.d])
        texts.append("" if behind is None else f"{behind:.1f}")
        lines.append(
            f"| {cell.version} | {cell.d} | {cell.n} | {cell.method} | {choice.trials} | {' | '.join(texts)} |"
        )
    return lines
