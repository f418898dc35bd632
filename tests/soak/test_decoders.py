"""Every decoder class of transformers runs with its tokens, or is refused at start in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.oracle.decoder_sweep import DTYPES, GOOD
from tests.oracle.tiny_decoders import MODEL_TYPES

from .decoder_report import sweep


def test_no_model_is_accepted_and_then_fails(
    record_property: Callable[[str, object], None],
) -> None:
    found = sweep(MODEL_TYPES)
    for dtype in DTYPES:
        counted = Counter(judgements[dtype].verdict for judgements in found.values())
        record_property(dtype, dict(counted))
    bad = {
        f"{model_type}, {dtype}": one
        for model_type, judgements in found.items()
        for dtype, one in judgements.items()
        if one.verdict not in GOOD
    }
    assert not bad
