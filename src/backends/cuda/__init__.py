"""The native CUDA library, and paged attention with its kernels."""
