"""Lam by the mean Winkler score on the validation set, from cells that are there already."""

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
    """The scores of one method at one size over the decays.

    Attributes:
        first: A cell; all differ in decay and trial alone.
        scores: Mean validation score at each decay, over the trials that every decay has; None where there is none.
        trials: How many trials that are.
        by_trial: The score of each of these trials at each decay.
    """

    first: Cell
    scores: dict[float, float | None]
    trials: int
    by_trial: dict[float, tuple[float, ...]]

    @property
    def best(self) -> float | None:
        """The decay of the smallest score; None unless every decay has one."""
        known = {lam: score for lam, score in self.scores.items() if score is not None}
        return min(known, key=known.__getitem__) if known and len(known) == len(self.scores) else None

    def behind_best(self, lam: float) -> float | None:
        """Return the mean score at ``lam`` less that of the best, in standard errors of that mean over trials.

        Trials are paired: both decays have the same data. None for the best itself, and for fewer than two trials.
        """
        if self.best is None or lam == self.best or self.trials < 2:
            return None
        differences = np.subtract(self.by_trial[lam], self.by_trial[self.best])
        error = float(np.std(differences, ddof=1)) / math.sqrt(self.trials)
        return float(np.mean(differences)) / error if error > 0 else None


def choose(cells: Sequence[Cell], results: Results) -> list[Choice]:
    """Compare the decays of every version, dimension, size and method, on the trials that all of them have."""
    groups: dict[Cell, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(Cell(**(cell.config() | {"trial": 0, "lam": 1.0})), []).append(cell)
    return [_choice(group, results) for group in groups.values()]


def _choice(cells: Sequence[Cell], results: Results) -> Choice:
    found: dict[float, dict[int, float]] = {}
    for cell in cells:
        scores = found.setdefault(cell.lam, {})
        result = results.read(cell)
        score = None if result is None or result["status"] != "done" else result["metrics"]["validation winkler"]
        if score is not None:
            scores[cell.trial] = score
    shared = set.intersection(*(set(scores) for scores in found.values()))
    by_trial = {lam: tuple(by[t] for t in sorted(shared)) for lam, by in sorted(found.items())}
    means = {lam: float(np.mean(scores)) if scores else None for lam, scores in by_trial.items()}
    return Choice(cells[0], means, len(shared), by_trial)


def to_markdown(choices: Sequence[Choice]) -> str:
    """Write the scores as a table, the smallest in bold; how many have no trial with every decay is said below."""
    compared = [choice for choice in choices if choice.trials]
    lines = _table(compared) if compared else []
    rest = len(choices) - len(compared)
    if rest:
        kinds = f"{rest} of {len(choices)} combinations of version, d, n and method"
        lines += ["", f"{kinds} have no trial with every lam yet and are left out."]
    return "\n".join(lines)


def _table(choices: Sequence[Choice]) -> list[str]:
    decays = sorted({lam for choice in choices for lam in choice.scores})
    lines = [
        f"| version | d | n | method | trials | {' | '.join(f'lam = {decay_text(lam)}' for lam in decays)} "
        "| the paper's lam behind the best |",
        f"|---|---|---|---|---|{'---|' * len(decays)}---|",
    ]
    for choice in choices:
        cell, texts = choice.first, []
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
