"""Training problems: a user's model and data, in JAX, torch or NumPy, as one class ``Problem``."""
