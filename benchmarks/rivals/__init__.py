"""Other ways to the same numbers, each at its best: one file a rival."""
