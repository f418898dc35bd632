"""--quantization: the expected method is compared with that of the checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tokenmill.backends.weights.expected_quantization import check_quantization
from tokenmill.core.errors import ConfigError

from .quantization.checkpoints import write_llama, write_tensors
from .quantization.writers import CASES


def test_only_the_checkpoint_s_own_method_passes(tmp_path: Path) -> None:
    checkpoint, _ = write_llama(tmp_path, CASES["awq"])
    check_quantization("awq", checkpoint)
    check_quantization(None, checkpoint)
    with pytest.raises(ConfigError, match=r"says gptq, but .* is quantized with awq"):
        check_quantization("gptq", checkpoint)
    with pytest.raises(ConfigError, match=r"'int5' is unknown; known: awq, .*gguf"):
        check_quantization("int5", checkpoint)
    plain = write_tensors(tmp_path, {"a": torch.ones(1)}, None)
    with pytest.raises(ConfigError, match=r"says fp8, but .* is not quantized"):
        check_quantization("fp8", plain)
