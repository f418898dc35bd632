"""With --hf-overrides, tokens are those of transformers with the same configuration."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from tokenmill.backends.models.opening import choose_model_impl, open_model
from tokenmill.core.config import EngineConfig
from tokenmill.core.host.plugin_host import PluginHost

from . import toy
from .architectures import MODELS
from .comparison import find_near_ties
from .reference import gap
from .settings import Setting
from .test_architectures import make_cases

THETA = {"rope_type": "default", "rope_theta": 300.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
        "original_max_position_embeddings": 64}  # fmt: skip


@pytest.mark.parametrize("impl", ["native", "transformers"])
@pytest.mark.parametrize(
    ("overrides", "same"),
    [
        ('{"rope_theta": 300}', THETA),  # transformers 5 writes it into rope_parameters
        ({"rope_scaling": {"type": "yarn", "factor": 4.0,
                           "original_max_position_embeddings": 64}}, YARN),
    ],
    ids=["theta", "yarn"],
)  # fmt: skip
def test_another_rotation_gives_transformers_tokens(
    overrides: Any, same: dict[str, Any], impl: str, tmp_path: Path
) -> None:
    made = MODELS["llama"].make()
    made.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, rope_parameters=same).eval()
    model.generation_config.eos_token_id = None
    prompts = toy.make_prompts()[4::4]
    cases = make_cases(model, prompts, num_tokens=8)
    config = EngineConfig(model_impl=impl, hf_overrides=overrides)
    opened = open_model(tmp_path, choose_model_impl(PluginHost.load(config)), config)
    served = toy.serve(Setting(scheduler="chunked"), cases, opened[0], impl=opened[1])
    find_near_ties(partial(gap, model), cases, served.token_ids)
    plain = make_cases(made, prompts, num_tokens=8)
    assert [case.token_ids for case in plain] != served.token_ids
