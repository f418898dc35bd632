"""A backend that does not know of a precision of the KV cache is refused, by whatever way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tokenmill.backends.attention.base import AttentionCapabilities
from tokenmill.backends.attention.reasons import reasons_against
from tokenmill.backends.machine.compiling import BuildError
from tokenmill.core.interfaces import no_progress

E4M3 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Spec:
    kv_cache_dtype: Any = None
    has_sinks: bool = False
    sees_ahead: bool = False


class Plain:
    """Can do nothing that is optional."""

    capabilities: AttentionCapabilities | None = AttentionCapabilities()

    @classmethod
    def reasons_against(cls, spec: object) -> list[str]:
        return ["it is Monday"]


class Narrow(Plain):
    capabilities = AttentionCapabilities(kv_cache_dtypes=(E4M3,))


class Composed(Plain):
    capabilities = None


REFUSAL = (
    "it keeps keys and values in the model's precision, not in float8_e4m3fn (--kv-cache-dtype)"
)


def test_without_a_wish_there_is_nothing_to_refuse() -> None:
    assert reasons_against(Plain, Spec()) == ["it is Monday"]


def test_a_backend_that_does_not_name_the_type_is_refused_with_its_own_reasons() -> None:
    assert reasons_against(Plain, Spec(E4M3)) == ["it is Monday", REFUSAL]
    assert len(reasons_against(Narrow, Spec(torch.float8_e5m2))) == 2


@pytest.mark.parametrize("backend", [Narrow, Composed])
def test_one_that_names_it_or_asks_others_speaks_for_itself(backend: type[Plain]) -> None:
    assert reasons_against(backend, Spec(E4M3)) == ["it is Monday"]


def test_a_backend_that_sees_only_back_is_refused_for_images_that_need_more() -> None:
    [_, reason] = reasons_against(Plain, Spec(sees_ahead=True))
    assert "tokens of an image cannot see each other" in reason

    class Seeing(Plain):
        capabilities = AttentionCapabilities(sees_ahead=True)

    assert reasons_against(Seeing, Spec(sees_ahead=True)) == ["it is Monday"]


def test_a_backend_that_compiles_something_does_so_first_and_shows_its_progress() -> None:
    calls: list[object] = []

    class Compiled(Plain):
        capabilities = AttentionCapabilities(builds=True)

        @classmethod
        def build(cls, spec: object, progress: object) -> None:
            calls.append(progress)
            raise BuildError("no compiler")

        @classmethod
        def reasons_against(cls, spec: object) -> list[str]:
            return [f"built {len(calls)} times"]

    assert reasons_against(Compiled, Spec(), no_progress) == ["built 1 times"]
    assert calls == [no_progress]
