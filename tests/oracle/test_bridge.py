"""Models that only transformers knows serve its tokens, through the engine's attention."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tokenmill.backends.models.bridge.bridge import TransformersModels
from tokenmill.backends.models.opening import choose_model_impl, open_model
from tokenmill.core.config import EngineConfig
from tokenmill.core.host.plugin_host import PluginHost

from . import toy
from .architectures import WINDOW, Model
from .comparison import find_near_ties
from .reference import gap
from .speculating import speculate
from .test_architectures import SETTINGS, make_cases

MODELS = {
    "granite": Model(
        family="Granite",
        changes={
            "embedding_multiplier": 2.0,
            "logits_scaling": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.3,
        },
    ),
    "olmo2": Model(family="Olmo2", changes={}),
    "glm4": Model(family="Glm4", changes={"head_dim": 16}),
    "cohere2, windows": Model(family="Cohere2", changes={"sliding_window": WINDOW}),
    "gpt-neox": Model(family="GPTNeoX", changes={"rotary_pct": 0.5, "num_key_value_heads": 4}),
}


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = MODELS[name].make()
    model.save_pretrained(tmp_path)
    cases = make_cases(model, toy.make_prompts()[4::2], num_tokens=16)
    assert len({case.token_ids for case in cases}) > len(cases) // 2
    config = EngineConfig()
    model_impl = choose_model_impl(PluginHost.load(config))
    checkpoint, impl = open_model(tmp_path, model_impl, config)
    assert isinstance(impl, TransformersModels)
    for setting in SETTINGS:
        served = toy.serve(setting, cases, checkpoint, impl=impl, **speculate("ngram", 3))
        find_near_ties(partial(gap, model), cases, served.token_ids)
        # With windows, all requests may fit into the cache.
        assert (served.num_preempted > 0 and served.num_hit_tokens > 0) or "windows" in name
        assert served.num_draft_tokens > 0
