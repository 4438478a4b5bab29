"""The variance of a prediction: the weighted norm V, the noise level, and the cache of what was computed for them."""
