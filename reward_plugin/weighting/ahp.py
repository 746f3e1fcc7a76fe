"""Analytic hierarchy process: comparison outcomes -> reciprocal matrix -> priority vector and its consistency.

Saaty, "A scaling method for priorities in hierarchical structures" (1977). Shape letters: K criteria, N matrices. Every
function takes one matrix (K, K) or many (N, K, K).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reward_plugin.errors import InvalidInput

FloatArray = NDArray[np.float64]

RANDOM_INDEX: dict[str, tuple[float, ...]] = {
    # Saaty (1980), as reprinted since, the dip at n = 12 included
    "saaty1980": (0, 0, 0.58, 0.90, 1.12, 1.24, 1.32, 1.41, 1.45, 1.49, 1.51, 1.48, 1.56, 1.57, 1.59),
    # Saaty (2005), Theory and Applications of the Analytic Network Process
    "saaty2005": (0, 0, 0.52, 0.89, 1.11, 1.25, 1.35, 1.40, 1.45, 1.49, 1.52, 1.54, 1.56, 1.58, 1.59),
    # Donegan & Dodd (1991), Mathematical and Computer Modelling 15(10)
    "donegan_dodd1991": (
        *(0, 0, 0.4914, 0.8286, 1.0591, 1.1797, 1.2519, 1.3171, 1.3733, 1.4055, 1.4213, 1.4497, 1.4643, 1.4822, 1.4969),
    ),
    # Alonso & Lamata (2006), IJUFKS 14(4)
    "alonso_lamata2006": (
        *(0, 0, 0.5247, 0.8816, 1.1086, 1.2479, 1.3417, 1.4057, 1.4499, 1.4854, 1.5140, 1.5365, 1.5551, 1.5713, 1.5838),
    ),
    # Simulated for the R package ahpsurvey
    "ahpsurvey": (
        *(0, 0, 0.5251686, 0.8836651, 1.1081014, 1.2492774, 1.3415514, 1.4048466, 1.4507197, 1.4857266),
        *(1.5141022, 1.5356638, 1.5545925, 1.5703498, 1.5839958),
    ),
    # Two mixtures of Saaty's printings that are common in code for modelling contests
    "cumcm": (0, 0, 0.58, 0.90, 1.12, 1.24, 1.32, 1.41, 1.45, 1.49, 1.52, 1.54, 1.56, 1.58, 1.59),
    "mcm": (0, 0, 0.52, 0.89, 1.12, 1.26, 1.36, 1.41, 1.46, 1.49, 1.52, 1.54, 1.56, 1.58, 1.59),
}
"""Mean consistency index of random reciprocal matrices, at position n - 1 for n criteria; the last value serves beyond."""

_RECIPROCAL_TOLERANCE = 1e-2  # published matrices round 1/3 to 0.33
_MAX_ITERATIONS = 10_000


@dataclass(frozen=True, slots=True)
class Priorities:
    """Weights of K criteria and how consistent the comparisons behind them are; N of each for N matrices.

    `weights` (K,) or (N, K) are positive and sum to 1. The others are () or (N,): `lambda_max` >= K,
    `consistency_index` and `consistency_ratio` >= 0, with a ratio of 0.1 the customary limit.
    """

    weights: FloatArray
    lambda_max: FloatArray
    consistency_index: FloatArray
    consistency_ratio: FloatArray


def comparison_matrix(count: int, outcomes: Iterable[tuple[int, int, float]], *, unasked: float = 1.0) -> FloatArray:
    """Return the reciprocal matrix (K, K) of outcomes (i, j, ratio): i is `ratio` times as important as j.

    Pairs without an outcome get `unasked`: 1 counts them as equal, NaN as not known. Raises `InvalidInput` for an index
    outside 0..K-1, a pair with itself, a pair given twice, or a ratio that is not finite and over 0.

    >>> comparison_matrix(2, [(0, 1, 3.0)]).round(3).tolist()
    [[1.0, 3.0], [0.333, 1.0]]
    """
    if count < 1:
        raise InvalidInput(f"a comparison matrix needs at least one criterion; got {count}")
    matrix = np.full((count, count), unasked)
    np.fill_diagonal(matrix, 1.0)
    seen: set[tuple[int, int]] = set()
    for i, j, ratio in outcomes:
        if not (0 <= i < count and 0 <= j < count) or i == j:
            raise InvalidInput(f"comparison ({i}, {j}): expected two different criteria in 0..{count - 1}")
        if isinstance(ratio, str | bool) or not np.isfinite(ratio) or ratio <= 0:
            raise InvalidInput(f"comparison ({i}, {j}): the ratio is a finite number over 0; got {ratio!r}")
        pair = (min(i, j), max(i, j))
        if pair in seen:
            raise InvalidInput(f"comparison ({i}, {j}): this pair was given twice")
        seen.add(pair)
        matrix[i, j] = ratio
        matrix[j, i] = 1.0 / ratio
    return matrix


def priorities(matrix: ArrayLike, *, random_index: str = "saaty1980") -> Priorities:
    """Return the priority vector of a positive reciprocal matrix, or of many of one size, with its consistency.

    A complete matrix is weighed by its principal eigenvector. Power iteration keeps a positive vector real and positive
    (Perron); a general eigensolver returns complex or negative entries for most such matrices. A matrix with NaN for
    pairs that were not compared is weighed by logarithmic least squares over those that were (Bozoki, Fulop and Ronyai,
    2010): lambda_max is then the mean row ratio of the matrix filled up by these weights, and the random index is shrunk by
    the share of cycles that the missing pairs take away (Agoston and Csato, 2022).

    Defined for every K >= 1. Raises `InvalidInput` for a matrix that is not square, positive, finite and reciprocal,
    for comparisons that leave the criteria in unconnected parts, or an unknown `random_index` table.

    >>> result = priorities([[1, 9, 1 / 9], [1 / 9, 1, 9], [9, 1 / 9, 1]])
    >>> result.weights.round(4).tolist(), round(float(result.consistency_ratio), 2)
    ([0.3333, 0.3333, 0.3333], 6.13)
    """
    if random_index not in RANDOM_INDEX:
        raise InvalidInput(f"unknown random index table {random_index!r}; known tables: {', '.join(RANDOM_INDEX)}")
    array = _validated(matrix)
    count = array.shape[-1]
    stack = array.reshape(-1, count, count)
    missing = np.isnan(stack)
    partial = missing.any(axis=(1, 2))
    weights = np.empty(stack.shape[:2])
    if partial.any():
        weights[partial] = _log_least_squares(stack[partial])
        stack = np.where(missing, weights[:, :, None] / weights[:, None, :], stack)
    weights[~partial] = _principal_eigenvector(stack[~partial])
    lambda_max = _lambda_max(stack, weights)
    index = np.maximum(0.0, (lambda_max - count) / max(1, count - 1))
    ratio = np.zeros_like(index)
    if count > 2:
        table = RANDOM_INDEX[random_index]
        cycles = 1.0 - missing.sum(axis=(1, 2)) / ((count - 1) * (count - 2))
        # A tree has no cycle that could contradict it
        ratio = np.divide(index, table[min(count, len(table)) - 1] * cycles, out=ratio, where=cycles > 1e-9)
    lead = array.shape[:-2]
    return Priorities(weights.reshape(*lead, count), *(one.reshape(lead)[()] for one in (lambda_max, index, ratio)))


def inconsistency(matrix: ArrayLike, weights: ArrayLike) -> FloatArray:
    """Return what each pair adds to lambda_max - K: (..., K, K), symmetric, its sum over i < j being lambda_max - K.

    With e_ij = a_ij w_j / w_i, a pair adds (e_ij + 1/e_ij - 2) / K; 0 means that it agrees with the weights. A pair that
    was not compared (NaN) adds nothing.

    >>> inconsistency([[1, 2], [0.5, 1]], [2 / 3, 1 / 3]).round(9).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    array = _validated(matrix)
    vector = np.asarray(weights, dtype=np.float64)
    error = array * vector[..., None, :] / vector[..., :, None]
    parts: FloatArray = np.nan_to_num((error + 1.0 / error - 2.0) / array.shape[-1], nan=0.0)
    return parts


def _validated(matrix: ArrayLike) -> FloatArray:
    try:
        array = np.array(matrix, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"a comparison matrix holds numbers, its rows of one length: {error}") from error
    if array.ndim not in (2, 3) or array.shape[-1] != array.shape[-2] or array.shape[-1] == 0:
        raise InvalidInput(f"expected a square matrix of at least 1 x 1, or a stack of them; got shape {array.shape}")
    known = np.isfinite(array) & (array > 0)
    wrong = ~(known | np.isnan(array)) | (np.isnan(array) != np.isnan(np.swapaxes(array, -1, -2)))
    wrong |= np.isnan(array) & np.eye(array.shape[-1], dtype=bool)
    if wrong.any():
        place, label = _first(wrong)
        raise InvalidInput(
            f"{label}: a comparison is finite and over 0, or NaN in both orders; got {array[place]} and "
            f"{np.swapaxes(array, -1, -2)[place]}"
        )
    product = array * np.swapaxes(array, -1, -2)
    off = np.abs(np.nan_to_num(product, nan=1.0) - 1.0)
    if off.size and off.max() > _RECIPROCAL_TOLERANCE:
        place, label = _first(off == off.max())
        raise InvalidInput(
            f"{label}: the two orders are reciprocal; got {array[place]} and {np.swapaxes(array, -1, -2)[place]}, expected "
            f"{1 / array[place]:.4g} for the latter"
        )
    return array


def _first(mask: NDArray[np.bool_]) -> tuple[tuple[int, ...], str]:
    place = tuple(int(one) for one in np.argwhere(mask)[0])
    pair = f"entries ({place[-2]}, {place[-1]}) and ({place[-1]}, {place[-2]})"
    return place, pair if len(place) == 2 else f"matrix {place[0]}, {pair}"


def _lambda_max(stack: FloatArray, weights: FloatArray) -> FloatArray:
    products: FloatArray = (stack @ weights[:, :, None])[:, :, 0]
    means: FloatArray = (products / weights).mean(axis=1)
    return means


def _principal_eigenvector(stack: FloatArray) -> FloatArray:
    # The row geometric mean is exact for consistent matrices and close otherwise: few steps remain
    vectors: FloatArray = np.exp(np.log(stack).mean(axis=2))
    vectors /= vectors.sum(axis=1, keepdims=True)
    open_rows = np.arange(len(stack))
    for _ in range(_MAX_ITERATIONS):
        if not open_rows.size:
            break
        before = vectors[open_rows]
        following = (stack @ before[:, :, None])[:, :, 0]
        following /= following.sum(axis=1, keepdims=True)
        vectors[open_rows] = following
        moving = np.abs(following - before).max(axis=1) > 1e-15
        if not moving.all():
            open_rows, stack = open_rows[moving], stack[moving]
    return vectors


def _log_least_squares(stack: FloatArray) -> FloatArray:
    count = stack.shape[-1]
    logs = np.log(stack)
    known = ~np.isnan(stack)
    np.einsum("nkk->nk", known)[:] = False
    for row, matrix in enumerate(known):
        parts = _parts(matrix)
        if len(parts) > 1:
            label = "" if len(stack) == 1 else f"incomplete matrix {row}: "
            raise InvalidInput(
                f"{label}the comparisons leave the criteria in {len(parts)} parts ({'; '.join(map(str, parts[:4]))}); "
                "compare at least one pair across each"
            )
    laplacian = np.where(np.eye(count, dtype=bool), known.sum(axis=2)[:, :, None], -known.astype(np.float64))
    # Weights are known up to a factor: the added constant fixes it and leaves the solution
    right = np.where(known, logs, 0.0).sum(axis=2)
    solution = np.linalg.solve(laplacian + 1.0 / count, right[:, :, None])[:, :, 0]
    weights: FloatArray = np.exp(solution - solution.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def _parts(known: NDArray[np.bool_]) -> list[list[int]]:
    parts: list[list[int]] = []
    left = set(range(len(known)))
    while left:
        part, stack = set(), [min(left)]
        while stack:
            one = stack.pop()
            if one not in part:
                part.add(one)
                stack += np.flatnonzero(known[one]).tolist()
        left -= part
        parts.append(sorted(part))
    return parts
