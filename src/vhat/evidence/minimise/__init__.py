"""The way to a certified minimum: L-BFGS, trust-region Newton, escape from saddles, and the proof of arrival."""

from vhat.evidence.minimise.polish import Polished, polish

__all__ = ["Polished", "polish"]
