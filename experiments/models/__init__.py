"""Models of the experiments that start from weights trained elsewhere."""
