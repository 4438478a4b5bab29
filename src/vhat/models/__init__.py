"""The only rooms that know an autodiff framework: each turns a user's model into a ``Problem``."""
