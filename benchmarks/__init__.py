"""Measured costs of vhat beside its rivals: ``python -m benchmarks``."""
