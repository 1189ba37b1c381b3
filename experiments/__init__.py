"""The experiments: train with IVON, propagate, calibrate, compare all methods; the paper's rows and others."""
