"""The native CUDA library: its build, and paged attention by its kernels."""
