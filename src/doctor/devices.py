"""torch, and the GPUs that it can use."""

from __future__ import annotations

from pathlib import Path

from ..backends.machine.places import visible_gpus
from .finding import Finding, note, ok, problem, warning


def examine_torch() -> Finding:
    """The build of torch."""
    try:
        import torch
    except Exception as error:  # a damaged build can raise anything
        return problem(
            "torch",
            f"it cannot be imported: {error}",
            cost="no model runs",
            advice="install it again: pip install --force-reinstall torch",
        )
    build = torch.version.cuda or torch.version.hip
    kind = f"CUDA {build}" if build else "CPU"
    found = f"torch {torch.__version__} for {kind}, {torch.get_num_threads()} threads"
    if build and not visible_gpus():
        return note(
            "torch",
            f"{found}; no GPU is visible",
            cost="gigabytes on the disk that this machine does not use",
            advice="pip install torch --index-url https://download.pytorch.org/whl/cpu",
        )
    return ok("torch", found)


def examine_gpus() -> Finding:
    """The GPUs, with their memory."""
    import torch

    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        named = [f"{one.name}, {one.total_memory / (1 << 30):.0f} GiB" for one in devices]
        return ok("GPU", "; ".join(named))
    if visible_gpus() or Path("/proc/driver/nvidia/version").exists():
        build = torch.version.cuda
        why = "this torch is built for CPUs" if build is None else f"torch's CUDA is {build}"
        return warning(
            "GPU",
            f"there is an NVIDIA GPU or driver, but torch cannot use it: {why}",
            cost="everything is computed on the CPU",
            advice="install a torch for the driver's CUDA version (nvidia-smi shows it)",
        )
    return ok("GPU", "none; the CPU computes")
