"""Rules as single kernels: Triton where it runs, C++ for activations on CPUs, the rule itself as reference."""
