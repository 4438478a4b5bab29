"""Plots of results. Each function takes a result and an optional axis, and returns the axis; none computes a result."""

from __future__ import annotations

from vhat.plot.bands import Band, band, gallery
from vhat.plot.coverage_plane import coverage_plane
from vhat.plot.ellipse import Outline, ellipse
from vhat.plot.score_curves import Scores, decay_curve
from vhat.plot.style import BLACK, BLUE, GREY, ORANGE

__all__ = [
    "BLACK",
    "BLUE",
    "GREY",
    "ORANGE",
    "Band",
    "Outline",
    "Scores",
    "band",
    "coverage_plane",
    "decay_curve",
    "ellipse",
    "gallery",
]
