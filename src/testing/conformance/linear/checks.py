"""The checks of the suite for linear backends: products, compared with float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F

from ....backends.linear.base import ACTIVATIONS, LinearBackend, LinearSpec, Projection
from ....backends.weights.packed import PackedWeights, Weights
from .samples import FORMATS, dense, dense_matrix, packed_matrix

BackendClass = type[LinearBackend]

NUM_INPUTS = 512
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROWS = (1, 2, 7, 33)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
"""Maximum error of a product, relative to the size of the exact result (Frobenius norm).

In bfloat16 it has room for inputs that are rounded to eight bits.
"""


class Refused(Exception):
    """The backend does not serve what a test needs."""


def find_spec(backend: BackendClass, device: torch.device) -> LinearSpec:
    """Return a specification that the backend serves. Raises Refused with its reasons."""
    refusals = []
    for dtype in DTYPES:
        spec = LinearSpec(dtype=dtype, device=device)
        reasons = backend.reasons_against(spec)
        if not reasons:
            return spec
        refusals += reasons
    raise Refused("; ".join(dict.fromkeys(refusals)))


def kept_formats(backend: BackendClass, spec: LinearSpec) -> list[str]:
    """Return the names of the sample formats that the backend keeps packed."""
    return [name for name in FORMATS if backend.keeps(spec, packed_matrix(name, 1, 256, 0).format)]


def check_reasons(backend: BackendClass, device: torch.device) -> None:
    """`reasons_against` returns a list of strings for any spec, `keeps` a bool for any format."""
    for dtype in DTYPES:
        spec = LinearSpec(dtype=dtype, device=device)
        reasons = backend.reasons_against(spec)
        assert isinstance(reasons, list), f"reasons_against returned {reasons!r}, not a list"
        assert all(isinstance(one, str) and one for one in reasons), f"not strings: {reasons!r}"
        if reasons:
            continue
        for name in FORMATS:
            kept = backend.keeps(spec, packed_matrix(name, 1, 256, 0).format)
            assert isinstance(kept, bool), f"keeps returned {kept!r} for {name}"


def check_products(backend: BackendClass, spec: LinearSpec, *, has_bias: bool) -> None:
    """x W^T + b, for weights in floating point and several numbers of outputs."""
    for num_outputs in (1, 17, 96):
        weights = dense_matrix(num_outputs, NUM_INPUTS, spec.dtype, 1).to(spec.device)
        check_linear(backend, spec, [weights], has_bias=has_bias)
    check_rows(backend, spec, weights, "floats")


def check_kept(backend: BackendClass, spec: LinearSpec, name: str) -> None:
    """x W^T, for packed weights; and the rows of these weights, if the backend looks them up."""
    weights = packed_matrix(name, 70, NUM_INPUTS, 2)
    check_linear(backend, spec, [weights], has_bias=False)
    check_rows(backend, spec, weights, name)


def check_rows(backend: BackendClass, spec: LinearSpec, weights: Weights, name: str) -> None:
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


def check_segments(backend: BackendClass, spec: LinearSpec) -> None:
    """Segments of different formats and sizes are one matrix, in their order."""
    segments: list[Weights] = [
        packed_matrix(name, 16 + 3 * i, NUM_INPUTS, i)
        for i, name in enumerate(kept_formats(backend, spec))
    ]
    segments.insert(1, dense_matrix(40, NUM_INPUTS, spec.dtype, 3).to(spec.device))
    check_linear(backend, spec, segments, has_bias=False)


def check_linear(
    backend: BackendClass, spec: LinearSpec, segments: Sequence[Weights], *, has_bias: bool
) -> None:
    """Compare a product, and its counts of parameters and bytes."""
    exact = torch.cat([dense(one) for one in segments])
    bias = _bias(len(exact), spec) if has_bias else None
    projection = backend(spec).linear(segments, bias)
    added = 0.0 if bias is None else bias.double().cpu()
    compare(projection, spec, lambda x: F.linear(x, exact) + added)
    wanted = exact.numel() + (0 if bias is None else bias.numel())
    assert projection.num_parameters == wanted, (
        f"num_parameters is {projection.num_parameters}, not {wanted}"
    )
    least = sum(one.num_bytes if isinstance(one, PackedWeights) else one.nbytes for one in segments)
    assert projection.num_bytes >= least // 2, (
        f"num_bytes is {projection.num_bytes}, but the weights have {least}"
    )


def check_gate_up(backend: BackendClass, spec: LinearSpec, activation: str) -> None:
    """activation(gate) * up, with a bias, for each kept format and for two different formats."""
    plain = [dense_matrix(48, NUM_INPUTS, spec.dtype, seed).to(spec.device) for seed in (4, 5)]
    pairs: list[tuple[Weights, Weights]] = [(plain[0], plain[1])]
    for name in kept_formats(backend, spec):
        packed = packed_matrix(name, 48, NUM_INPUTS, 6)
        pairs += [(packed, packed_matrix(name, 48, NUM_INPUTS, 7)), (packed, plain[1])]
    for gate, up in pairs:
        bias = _bias(96, spec)
        projection = backend(spec).gate_up(gate, up, bias, activation)
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

        compare(projection, spec, exact)


def check_head(backend: BackendClass, spec: LinearSpec) -> None:
    """A head's result is float32, whatever its weights are."""
    heads: list[Weights] = [dense_matrix(77, NUM_INPUTS, spec.dtype, 8).to(spec.device)]
    heads += [packed_matrix(name, 77, NUM_INPUTS, 9) for name in kept_formats(backend, spec)]
    for weights in heads:
        exact, projection = dense(weights), backend(spec).head(weights)
        got = projection(inputs(3, spec))
        assert got.dtype is torch.float32, f"a head's result is {got.dtype}, not float32"
        compare(projection, spec, partial(F.linear, weight=exact))


def check_neighbours(backend: BackendClass, spec: LinearSpec) -> None:
    """A row that is not a number does not change the other rows."""
    weights: list[Weights] = [dense_matrix(40, NUM_INPUTS, spec.dtype, 10).to(spec.device)]
    weights += [packed_matrix(name, 40, NUM_INPUTS, 11) for name in kept_formats(backend, spec)]
    for one in weights:
        projection, x = backend(spec).linear([one], None), inputs(9, spec)
        before = projection(x.clone()).clone()
        x[4] = torch.nan
        after = projection(x)
        others = [row for row in range(9) if row != 4]
        assert torch.equal(before[others], after[others]), "a row changed another row's result"


def check_weights_are_kept(backend: BackendClass, spec: LinearSpec) -> None:
    """A projection changes neither its inputs nor the weights that it was made from."""
    weights = dense_matrix(40, NUM_INPUTS, spec.dtype, 12).to(spec.device)
    kept_weights, x = weights.clone(), inputs(5, spec)
    kept_x = x.clone()
    projection = backend(spec).linear([weights], None)
    first = projection(x).clone()
    assert torch.equal(projection(x), first), "the same call gave another result"
    assert torch.equal(x, kept_x), "a projection changed its inputs"
    assert torch.equal(weights, kept_weights), "a projection changed its weights"


def compare(
    projection: Projection, spec: LinearSpec, exact: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Compare a projection with a function in float64, for several numbers of rows."""
    for rows in ROWS:
        x = inputs(rows, spec)
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


def inputs(rows: int, spec: LinearSpec) -> torch.Tensor:
    """Random inputs [rows, NUM_INPUTS]."""
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, NUM_INPUTS, generator=generator).to(spec.device, spec.dtype)


def _bias(size: int, spec: LinearSpec) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, generator=generator).to(spec.device, spec.dtype)
