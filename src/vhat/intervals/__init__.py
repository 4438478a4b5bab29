"""Intervals: from weighted norms and noise, through a bound, to limits and the sentence that states the guarantee."""
