"""Shared parts of the methods: the base class, what a method claims, ensembles, posteriors and kernels."""
