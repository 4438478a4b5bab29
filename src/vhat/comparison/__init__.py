"""Methods side by side: the same splits, the same seeds, the same questions, one tidy table."""

from __future__ import annotations

from vhat.comparison.outcome import Outcome
from vhat.comparison.result import Comparison
from vhat.comparison.run import compare
from vhat.comparison.splits import Split

__all__ = ["Comparison", "Outcome", "Split", "compare"]
