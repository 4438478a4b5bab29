"""The controlled study: truths that are known, and data drawn from them."""

from __future__ import annotations

from vhat.study.data import Sample, Truth, sample
from vhat.study.truth import MaternTruth

__all__ = ["MaternTruth", "Sample", "Truth", "sample"]
