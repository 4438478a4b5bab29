"""Descent to a certified minimum: L-BFGS, trust-region Newton, escapes from saddles, and the certificate."""

from vhat.evidence.minimise.polish import Polished, polish

__all__ = ["Polished", "polish"]
