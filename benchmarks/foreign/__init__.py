"""Rivals that are packages of their own: run in an environment of their own, which needs neither vhat nor JAX.

``python -m benchmarks.foreign`` reads requests as lines of JSON and answers each with one line; the parent's side is
:mod:`benchmarks.rivals.foreign`.
"""
