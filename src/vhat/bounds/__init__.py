"""Half widths from a weighted norm: pure formulas on plain arrays.

Notation: ``V`` is the weighted norm (``norm``), ``l = ln(2 / delta)``, and ``(v, c)`` is the sub-gamma pair of V in
units of V: ``ln E exp(a (V - E V)) <= a^2 v^2 / (2 (1 - c a))`` for ``0 < a < 1/c``.

The bounds are statements about ``E V``. With the observed V in place of ``E V`` they are heuristics, not theorems: for
a prediction that is the square of one Gaussian variable, ``tight`` at delta = 0.05 with the observed V and no tail
misses 14% of the time. `isoperimetric` is the narrowest of the proved bounds at the usual levels.

"Proved" always means: for Gaussian noise, and for a minimum that changes continuously with the noise. No half width
except that of `ridge` includes bias.

All functions broadcast over ``norm``, ``noise``, ``delta``, ``v`` and ``c`` and return a NumPy array, which is
zero-dimensional if every argument is a number. NaN in ``norm``, ``v`` or ``c`` gives NaN. The derivations are in
``docs/bounds.md``.
"""

from vhat.bounds.covers import uniform, uniform_box
from vhat.bounds.isoperimetry import isoperimetric, isoperimetric_multiplier
from vhat.bounds.pointwise import asymptotic, chebyshev, empirical, observation, sharp, theorem, tight
from vhat.bounds.special_settings import Damping, fisher_damping, lipschitz_gap, lipschitz_network, ridge

__all__ = [
    "Damping",
    "asymptotic",
    "chebyshev",
    "empirical",
    "fisher_damping",
    "isoperimetric",
    "isoperimetric_multiplier",
    "lipschitz_gap",
    "lipschitz_network",
    "observation",
    "ridge",
    "sharp",
    "theorem",
    "tight",
    "uniform",
    "uniform_box",
]
