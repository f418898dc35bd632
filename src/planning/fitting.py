"""Fits a step-time model to measured steps: non-negative least squares of relative errors."""

from __future__ import annotations

from collections.abc import Sequence

from .step_time import StepTimeModel, StepWork, hat_weights

Vector = list[float]

_TERMS = ("num_sampled", "num_context_tokens", "num_attended_pairs", "num_copied_blocks")


def fit_step_time(steps: Sequence[tuple[StepWork, float]], knots: Sequence[int]) -> StepTimeModel:
    """Fit a model, without the engine loop's overheads, to pairs of (work, seconds).

    Each step counts by its relative error, so that short and long steps weigh the same. A
    coefficient is 0 if the steps do not determine it (no block was copied, for example), or if the
    fit would make it negative.
    """
    rows = [_row(work, seconds, knots) for work, seconds in steps]
    found = _solve_nonnegative(rows)
    sampled, context, pairs, copied = found[len(knots) :]
    return StepTimeModel(
        tokens=tuple(zip(knots, found, strict=False)),
        per_sampled_token=sampled,
        per_context_token=context,
        per_attended_pair=pairs,
        per_copied_block=copied,
    )


def _row(work: StepWork, seconds: float, knots: Sequence[int]) -> Vector:
    """The left side of the step's equation, divided by its seconds. The right side is then 1."""
    row = [0.0] * len(knots)
    for index, weight in hat_weights(knots, work.num_tokens):
        row[index] = weight
    row += [float(getattr(work, term)) for term in _TERMS]
    return [value / seconds for value in row]


def _solve_nonnegative(rows: Sequence[Vector]) -> Vector:
    """Least squares: fixes the most negative unknown at 0, and repeats until none is negative."""
    columns = list(zip(*rows, strict=True))
    scales = [sum(value * value for value in column) ** 0.5 for column in columns]
    free = [index for index, scale in enumerate(scales) if scale > 0]
    while True:
        unit = [[value / scales[index] for value in columns[index]] for index in free]
        solution = _least_squares(unit)
        lowest = min(range(len(free)), key=solution.__getitem__)
        if solution[lowest] >= 0:
            break
        del free[lowest]
    found = [0.0] * len(columns)
    for index, value in zip(free, solution, strict=True):
        found[index] = value / scales[index]
    return found


def _least_squares(columns: Sequence[Vector]) -> Vector:
    """Minimise |A x - 1| by the normal equations. Columns must have unit length, for stability."""
    size = len(columns)
    matrix = [[sum(map(float.__mul__, a, b)) for b in columns] + [sum(a)] for a in columns]
    for index in range(size):
        matrix[index][index] += 1e-12  # avoids a division by 0 for two equal columns
    for index in range(size):
        pivot = max(range(index, size), key=lambda i: abs(matrix[i][index]))
        matrix[index], matrix[pivot] = matrix[pivot], matrix[index]
        for other in range(index + 1, size):
            factor = matrix[other][index] / matrix[index][index]
            matrix[other] = [
                x - factor * y for x, y in zip(matrix[other], matrix[index], strict=True)
            ]
    solution = [0.0] * size
    for index in reversed(range(size)):
        known = sum(map(float.__mul__, matrix[index][index + 1 : size], solution[index + 1 :]))
        solution[index] = (matrix[index][size] - known) / matrix[index][index]
    return solution
