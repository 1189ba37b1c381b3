"""Rules as single kernels: Triton where it runs, the rule itself as reference, fallback and CPU form."""
