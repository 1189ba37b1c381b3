"""Model → graph → lifted graph → module; ``compiler.compile_call`` shows the steps, a line each."""
