"""The whole pipeline on real images: train with IVON, propagate, calibrate, compare, report."""
