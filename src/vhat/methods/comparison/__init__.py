"""Methods side by side: the same splits, the same seeds, the same questions, one tidy table."""

from __future__ import annotations

from vhat.methods.comparison.outcome import Outcome
from vhat.methods.comparison.result import Comparison
from vhat.methods.comparison.run import compare
from vhat.methods.comparison.splits import Split

__all__ = ["Comparison", "Outcome", "Split", "compare"]
