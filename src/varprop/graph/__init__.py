"""Model → graph: export, call signatures, regrouping of written-out functions."""
