"""How tests load a model for torch on the CPU, in float32."""

from __future__ import annotations

import torch

from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.linear.torch import TorchLinear
from tokenmill.backends.models.base import LoadOptions
from tokenmill.core.interfaces import no_progress

SPEC = LinearSpec(dtype=torch.float32, device=torch.device("cpu"))
OPTIONS = LoadOptions(
    products=SPEC,
    linear=TorchLinear(SPEC),
    keeps_packed=False,
    max_model_len=None,
    progress=no_progress,
)
