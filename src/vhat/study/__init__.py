"""The controlled study: known regression functions, and data drawn from them."""

from __future__ import annotations

from vhat.study.data import Sample, Truth, sample
from vhat.study.truth import MaternTruth, exact_draw

__all__ = ["MaternTruth", "Sample", "Truth", "exact_draw", "sample"]
