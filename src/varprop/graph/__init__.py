"""Model → graph → lifted graph → module; ``pipeline.compile_call`` shows the steps, a line each."""
