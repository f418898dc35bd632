"""The suite for linear backends: products of every kind, compared with float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F

from ....backends.linear.base import ACTIVATIONS, LinearBackend, LinearSpec, Projection
from ....backends.weights.packed import PackedWeights, Weights
from ..computing.devices import devices_to_try
from ..suites import suite
from .samples import FORMATS, dense, dense_matrix, packed_matrix

BackendClass = type[LinearBackend]

NUM_INPUTS = 512
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROWS = (1, 2, 7, 33)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
"""Maximum error of a product, relative to the size of the exact result (Frobenius norm).

In bfloat16 it has room for inputs that are rounded to eight bits.
"""


def check_reasons_and_kept_formats_are_returned_for_any_specification(
    linear_backend: BackendClass, device: str | None = None
) -> None:
    """`reasons_against` returns a list of strings for any specification, and `keeps` a bool for any
    format; neither raises."""
    for place, dtype in product(devices_to_try(device), DTYPES):
        spec = LinearSpec(dtype=dtype, device=place)
        reasons = linear_backend.reasons_against(spec)
        assert isinstance(reasons, list), f"reasons_against returned {reasons!r}, not a list"
        assert all(isinstance(one, str) and one for one in reasons), f"not strings: {reasons!r}"
        if reasons:
            continue
        for name in FORMATS:
            kept = linear_backend.keeps(spec, packed_matrix(name, 1, 256, 0).format)
            assert isinstance(kept, bool), f"keeps returned {kept!r} for {name}"


@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "with a bias"])
def check_products_equal_the_reference(
    linear_backend: BackendClass, has_bias: bool, device: str | None = None
) -> None:
    """x W^T + b is right, for weights in floating point and any number of rows and outputs."""
    spec = _spec(linear_backend, device)
    for num_outputs in (1, 17, 96):
        weights = dense_matrix(num_outputs, NUM_INPUTS, spec.dtype, 1).to(spec.device)
        _check_linear(linear_backend, spec, [weights], has_bias=has_bias)
    _check_rows(linear_backend, spec, weights, "floats")


def check_kept_weights_are_multiplied_as_they_are(
    linear_backend: BackendClass, device: str | None = None
) -> None:
    """Products with packed weights equal those with the dequantized ones, and so do their rows, if
    the backend looks them up."""
    spec = _spec(linear_backend, device)
    for name in _kept_formats(linear_backend, spec):
        weights = packed_matrix(name, 70, NUM_INPUTS, 2)
        _check_linear(linear_backend, spec, [weights], has_bias=False)
        _check_rows(linear_backend, spec, weights, name)


def check_segments_are_one_matrix_in_their_order(
    linear_backend: BackendClass, device: str | None = None
) -> None:
    """Segments of different formats and sizes are one matrix, in their order."""
    spec = _spec(linear_backend, device)
    segments: list[Weights] = [
        packed_matrix(name, 16 + 3 * i, NUM_INPUTS, i)
        for i, name in enumerate(_kept_formats(linear_backend, spec))
    ]
    segments.insert(1, dense_matrix(40, NUM_INPUTS, spec.dtype, 3).to(spec.device))
    _check_linear(linear_backend, spec, segments, has_bias=False)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_pytorch_tanh"])
def check_gate_and_up_equal_the_reference(
    linear_backend: BackendClass, activation: str, device: str | None = None
) -> None:
    """activation(gate) * up is right, for each kept format and for two different formats. The bias
    has gate's numbers first."""
    spec = _spec(linear_backend, device)
    plain = [dense_matrix(48, NUM_INPUTS, spec.dtype, seed).to(spec.device) for seed in (4, 5)]
    pairs: list[tuple[Weights, Weights]] = [(plain[0], plain[1])]
    for name in _kept_formats(linear_backend, spec):
        packed = packed_matrix(name, 48, NUM_INPUTS, 6)
        pairs += [(packed, packed_matrix(name, 48, NUM_INPUTS, 7)), (packed, plain[1])]
    for gate, up in pairs:
        bias = _bias(96, spec)
        projection = linear_backend(spec).gate_up(gate, up, bias, activation)
        gate_exact, up_exact = dense(gate), dense(up)
        gate_bias, up_bias = bias.double().cpu().chunk(2)

        def exact(
            x: torch.Tensor,
            g: torch.Tensor = gate_exact,
            u: torch.Tensor = up_exact,
            bg: torch.Tensor = gate_bias,
            bu: torch.Tensor = up_bias,
        ) -> torch.Tensor:
            return ACTIVATIONS[activation](F.linear(x, g) + bg) * (F.linear(x, u) + bu)

        _compare(projection, spec, exact)


def check_a_head_returns_float32(linear_backend: BackendClass, device: str | None = None) -> None:
    """Logits are float32, whatever the weights are."""
    spec = _spec(linear_backend, device)
    heads: list[Weights] = [dense_matrix(77, NUM_INPUTS, spec.dtype, 8).to(spec.device)]
    heads += [
        packed_matrix(name, 77, NUM_INPUTS, 9) for name in _kept_formats(linear_backend, spec)
    ]
    for weights in heads:
        exact, projection = dense(weights), linear_backend(spec).head(weights)
        got = projection(_inputs(3, spec))
        assert got.dtype is torch.float32, f"a head's result is {got.dtype}, not float32"
        _compare(projection, spec, partial(F.linear, weight=exact))


def check_rows_do_not_change_each_other(
    linear_backend: BackendClass, device: str | None = None
) -> None:
    """One request's NaN stays in its row: the rows of other requests keep their bits."""
    spec = _spec(linear_backend, device)
    weights: list[Weights] = [dense_matrix(40, NUM_INPUTS, spec.dtype, 10).to(spec.device)]
    weights += [
        packed_matrix(name, 40, NUM_INPUTS, 11) for name in _kept_formats(linear_backend, spec)
    ]
    for one in weights:
        projection, x = linear_backend(spec).linear([one], None), _inputs(9, spec)
        before = projection(x.clone()).clone()
        x[4] = torch.nan
        after = projection(x)
        others = [row for row in range(9) if row != 4]
        assert torch.equal(before[others], after[others]), "a row changed another row's result"


def check_inputs_and_weights_stay_as_they_are(
    linear_backend: BackendClass, device: str | None = None
) -> None:
    """A projection changes neither its inputs nor the weights that it was made from."""
    spec = _spec(linear_backend, device)
    weights = dense_matrix(40, NUM_INPUTS, spec.dtype, 12).to(spec.device)
    kept_weights, x = weights.clone(), _inputs(5, spec)
    kept_x = x.clone()
    projection = linear_backend(spec).linear([weights], None)
    first = projection(x).clone()
    assert torch.equal(projection(x), first), "the same call gave another result"
    assert torch.equal(x, kept_x), "a projection changed its inputs"
    assert torch.equal(weights, kept_weights), "a projection changed its weights"


@suite
class LinearConformance:
    """The suite for a linear backend.

    Subclass it as Test..., with a fixture `linear_backend` that returns the backend's class. A
    fixture `device` may name the device. Without it, tests run on the GPU if there is one and the
    backend supports it, else on the CPU.
    """


def _spec(backend: BackendClass, device: str | None) -> LinearSpec:
    """A specification that the backend serves. If there is none, the test is skipped."""
    refusals: list[str] = []
    for place, dtype in product(devices_to_try(device), DTYPES):
        spec = LinearSpec(dtype=dtype, device=place)
        try:
            reasons = backend.reasons_against(spec)
        except Exception as error:
            pytest.skip(f"reasons_against raises, which another test reports: {error}")
        if not reasons:
            return spec
        refusals += [f"on {place}: {reason}" for reason in reasons]
    pytest.skip(f"refused: {'; '.join(dict.fromkeys(refusals))}")


def _kept_formats(backend: BackendClass, spec: LinearSpec) -> list[str]:
    """The names of the sample formats that the backend keeps packed."""
    return [name for name in FORMATS if backend.keeps(spec, packed_matrix(name, 1, 256, 0).format)]


def _check_rows(backend: BackendClass, spec: LinearSpec, weights: Weights, name: str) -> None:
    """Compare the rows of a head, and those of packed weights, with the numbers of the weights."""
    made = backend(spec)
    if not made.capabilities.looks_up:
        return
    ids = torch.tensor([69, 0, 33, 33], device=spec.device)
    exact = dense(weights).to(spec.dtype)[ids.cpu()]
    sources = [made.head(weights), *([weights] if isinstance(weights, PackedWeights) else [])]
    for source in sources:
        embedding = cast(Any, made).embedding(source)
        found = embedding(ids)
        assert found.dtype is spec.dtype, f"rows of {name} are {found.dtype}, not {spec.dtype}"
        assert torch.equal(found.cpu(), exact), f"rows of {name} have other numbers"
        wanted = len(weights) if isinstance(weights, torch.Tensor) else weights.shape[0]
        assert embedding.num_parameters == wanted * NUM_INPUTS


def _check_linear(
    backend: BackendClass, spec: LinearSpec, segments: Sequence[Weights], *, has_bias: bool
) -> None:
    """Compare a product, and its counts of parameters and bytes."""
    exact = torch.cat([dense(one) for one in segments])
    bias = _bias(len(exact), spec) if has_bias else None
    projection = backend(spec).linear(segments, bias)
    added = 0.0 if bias is None else bias.double().cpu()
    _compare(projection, spec, lambda x: F.linear(x, exact) + added)
    wanted = exact.numel() + (0 if bias is None else bias.numel())
    assert projection.num_parameters == wanted, (
        f"num_parameters is {projection.num_parameters}, not {wanted}"
    )
    least = sum(one.num_bytes if isinstance(one, PackedWeights) else one.nbytes for one in segments)
    assert projection.num_bytes >= least // 2, (
        f"num_bytes is {projection.num_bytes}, but the weights have {least}"
    )


def _compare(
    projection: Projection, spec: LinearSpec, exact: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Compare a projection with a function in float64, for several numbers of rows."""
    for rows in ROWS:
        x = _inputs(rows, spec)
        wanted = exact(x.double().cpu())
        got = projection(x).double().cpu()
        assert got.shape == wanted.shape, (
            f"the result is {list(got.shape)}, not {list(wanted.shape)}"
        )
        error = ((got - wanted).norm() / wanted.norm()).item()
        assert error <= TOLERANCE[spec.dtype], (
            f"{rows} rows: the error is {error:.2g} of the result's size, "
            f"at most {TOLERANCE[spec.dtype]:g} is allowed in {spec.dtype}"
        )


def _inputs(rows: int, spec: LinearSpec) -> torch.Tensor:
    """Random inputs [rows, NUM_INPUTS]."""
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, NUM_INPUTS, generator=generator).to(spec.device, spec.dtype)


def _bias(size: int, spec: LinearSpec) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, generator=generator).to(spec.device, spec.dtype)
