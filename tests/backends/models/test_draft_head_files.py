"""Draft heads on disk: what is loaded computes what the files say; what does not fit is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.linear.torch import TorchLinear
from tokenmill.backends.models.draft_head_files import DraftHeadFiles, is_draft_head
from tokenmill.core.errors import ConfigError

from ..tiny_checkpoints import TARGET, write_head, write_model

SIZE = TARGET.hidden_size


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_head(tmp_path / "head", TARGET, 3)


def change_config(path: Path, **fields: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | fields))


def change_tensors(path: Path, **tensors: torch.Tensor | None) -> None:
    changed = load_file(path / "model.safetensors") | tensors
    kept = {name: tensor for name, tensor in changed.items() if tensor is not None}
    save_file(kept, path / "model.safetensors")


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(dim=-1, keepdim=True) + TARGET.rms_norm_eps).sqrt()


def test_it_computes_what_the_files_say(path: Path) -> None:
    spec = LinearSpec(dtype=torch.float32, device=torch.device("cpu"))
    head = DraftHeadFiles(path).load(TorchLinear(spec), spec)
    w = load_file(path / "model.safetensors")
    state, embedded = torch.randn(2, 5, SIZE, generator=torch.Generator().manual_seed(1))
    found = head.advance(state, embedded)
    both = torch.cat((unit(state), unit(embedded)), dim=1)
    gate, up = both @ w["mlp.gate_proj.weight"].T, both @ w["mlp.up_proj.weight"].T
    right = both @ w["fc.weight"].T
    right += (gate * gate.sigmoid() * up) @ w["mlp.down_proj.weight"].T
    torch.testing.assert_close(found, right)
    right = unit(right) * w["norm.weight"] @ w["lm_head.weight"].T
    torch.testing.assert_close(head.logits(found), right)
    assert head.num_parameters == sum(w[name].numel() for name in w if name != "d2t")
    assert head.num_bytes == 4 * head.num_parameters


def test_it_is_told_from_a_whole_model(path: Path, tmp_path: Path) -> None:
    assert is_draft_head(path)
    assert not is_draft_head(write_model(tmp_path / "model", TARGET, 1))
    assert not is_draft_head(tmp_path / "nothing")


def test_a_tensor_that_is_missing_or_has_no_use_is_named(path: Path) -> None:
    change_tensors(path, **{"fc.weight": None, "fc.bias": torch.zeros(SIZE)})
    with pytest.raises(
        ConfigError, match=r"lacks the tensors fc\.weight, and has unknown tensors fc\.bias"
    ):
        DraftHeadFiles(path)


@pytest.mark.parametrize(
    "tensor", [torch.zeros(SIZE, SIZE), torch.zeros(SIZE, 2 * SIZE, dtype=torch.int8)], ids=str
)
def test_a_tensor_of_the_wrong_shape_or_type_is_named(tensor: torch.Tensor, path: Path) -> None:
    change_tensors(path, **{"fc.weight": tensor})
    with pytest.raises(ConfigError, match=r"fc\.weight of .*head is torch"):
        DraftHeadFiles(path).tensor("fc.weight")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"intermediate_size": "48"}, "intermediate_size in .* must be an integer"),
        ({"intermediate_size": 0}, "has sizes that no draft head can have"),
        ({"draft_vocab_size": 193}, "has sizes that no draft head can have"),
    ],
    ids=str,
)
def test_sizes_that_cannot_be_are_refused(fields: dict[str, Any], told: str, path: Path) -> None:
    change_config(path, **fields)
    with pytest.raises(ConfigError, match=told):
        DraftHeadFiles(path)


def test_tokens_that_the_target_does_not_have_are_refused(path: Path) -> None:
    change_tensors(path, d2t=torch.full((96,), 97))
    with pytest.raises(ConfigError, match="must give ascending token ids below 192"):
        DraftHeadFiles(path).token_ids()
