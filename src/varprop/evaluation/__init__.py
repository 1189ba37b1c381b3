"""Metrics of predictors over data sets: rows of results, what a pass costs, the methods compared."""
