"""Analytic hierarchy process: comparison outcomes -> reciprocal matrix -> priority vector and its consistency.

Saaty, "A scaling method for priorities in hierarchical structures" (1977). Shape letters: K criteria, N matrices.
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
}
"""Mean consistency index of random reciprocal matrices, at position n - 1 for n criteria; the last value serves beyond."""

_RECIPROCAL_TOLERANCE = 1e-2  # published matrices round 1/3 to 0.33
_MAX_ITERATIONS = 10_000


@dataclass(frozen=True, slots=True)
class Priorities:
    """Weights of K criteria and how consistent the comparisons behind them are.

    `weights` (K,) are positive and sum to 1; `lambda_max` >= K; `consistency_ratio` >= 0, with 0.1 the customary limit.
    """

    weights: FloatArray
    lambda_max: float
    consistency_index: float
    consistency_ratio: float


def comparison_matrix(count: int, outcomes: Iterable[tuple[int, int, float]]) -> FloatArray:
    """Return the reciprocal matrix (K, K) of outcomes (i, j, ratio): i is `ratio` times as important as j.

    Pairs without an outcome count as equal. Raises `InvalidInput` for an index outside 0..K-1, a pair with itself, a pair
    given twice, or a ratio that is not finite and over 0.

    >>> comparison_matrix(2, [(0, 1, 3.0)]).round(3).tolist()
    [[1.0, 3.0], [0.333, 1.0]]
    """
    if count < 1:
        raise InvalidInput(f"a comparison matrix needs at least one criterion; got {count}")
    matrix = np.ones((count, count))
    seen: set[tuple[int, int]] = set()
    for i, j, ratio in outcomes:
        if not (0 <= i < count and 0 <= j < count) or i == j:
            raise InvalidInput(f"comparison ({i}, {j}): expected two different criteria in 0..{count - 1}")
        if not np.isfinite(ratio) or ratio <= 0:
            raise InvalidInput(f"comparison ({i}, {j}): the ratio is finite and over 0; got {ratio}")
        pair = (min(i, j), max(i, j))
        if pair in seen:
            raise InvalidInput(f"comparison ({i}, {j}): this pair was given twice")
        seen.add(pair)
        matrix[i, j] = ratio
        matrix[j, i] = 1.0 / ratio
    return matrix


def priorities(matrix: ArrayLike, *, random_index: str = "saaty1980") -> Priorities:
    """Return the principal eigenvector of a positive reciprocal matrix (K, K) with its consistency.

    Power iteration, whose steps keep a positive vector real and positive (Perron); a general eigensolver returns complex
    or negative entries for most such matrices. Defined for every K >= 1. Raises `InvalidInput` for a matrix that is not
    square, positive, finite and reciprocal, or an unknown `random_index` table.

    >>> result = priorities([[1, 9, 1 / 9], [1 / 9, 1, 9], [9, 1 / 9, 1]])
    >>> result.weights.round(4).tolist(), round(result.consistency_ratio, 2)
    ([0.3333, 0.3333, 0.3333], 6.13)
    """
    array = _validated(matrix)
    count = len(array)
    if random_index not in RANDOM_INDEX:
        raise InvalidInput(f"unknown random index table {random_index!r}; known tables: {', '.join(RANDOM_INDEX)}")
    weights = _principal_eigenvector(array)
    lambda_max = float(np.mean(array @ weights / weights))
    if count <= 2:
        return Priorities(weights, lambda_max, 0.0, 0.0)
    index = max(0.0, (lambda_max - count) / (count - 1))
    table = RANDOM_INDEX[random_index]
    return Priorities(weights, lambda_max, index, index / table[min(count, len(table)) - 1])


def inconsistency(matrix: ArrayLike, weights: ArrayLike) -> FloatArray:
    """Return what each pair adds to lambda_max - K: (K, K), symmetric, its sum over i < j being lambda_max - K.

    With e_ij = a_ij w_j / w_i, a pair adds (e_ij + 1/e_ij - 2) / K; 0 means that it agrees with the weights.

    >>> inconsistency([[1, 2], [0.5, 1]], [2 / 3, 1 / 3]).round(9).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    array = _validated(matrix)
    vector = np.asarray(weights, dtype=np.float64)
    error = array * vector[None, :] / vector[:, None]
    return (error + 1.0 / error - 2.0) / len(array)


def _validated(matrix: ArrayLike) -> FloatArray:
    array = np.array(matrix, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.size == 0:
        raise InvalidInput(f"expected a square matrix of at least 1 x 1; got shape {array.shape}")
    if not np.isfinite(array).all() or (array <= 0).any():
        raise InvalidInput("a comparison matrix is finite and positive everywhere")
    product = array * array.T
    if np.abs(product - 1.0).max() > _RECIPROCAL_TOLERANCE:
        i, j = (int(k) for k in np.unravel_index(np.abs(product - 1.0).argmax(), product.shape))
        raise InvalidInput(f"entries ({i}, {j}) and ({j}, {i}) are not reciprocal: {array[i, j]} and {array[j, i]}")
    return array


def _principal_eigenvector(matrix: FloatArray) -> FloatArray:
    # The row geometric mean is exact for consistent matrices and close otherwise: few steps remain
    vector: FloatArray = np.exp(np.log(matrix).mean(axis=1))
    vector /= vector.sum()
    for _ in range(_MAX_ITERATIONS):
        following: FloatArray = matrix @ vector
        following /= following.sum()
        if np.abs(following - vector).max() <= 1e-15:
            return following
        vector = following
    return vector
