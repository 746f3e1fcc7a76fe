"""AHP numerics against published matrices and against what must hold for any."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_plugin.errors import InvalidInput
from reward_plugin.weighting.ahp import RANDOM_INDEX, comparison_matrix, inconsistency, priorities

from .strategies import alphas, rankings, reciprocal_matrices

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "ahp"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"{DATA.name}: the published matrices are not on this machine"
)
SLOW = settings(deadline=None, max_examples=60)


@needs_data
def test_published_matrices() -> None:
    """Weights to the published digit, the consistency ratio too where its table is one of ours."""
    checked = 0
    for entry in json.loads((DATA / "published_matrices.json").read_text()):
        result = priorities(
            entry["matrix"], random_index=entry["ri_table"] if entry["ri_table"] in RANDOM_INDEX else "saaty1980"
        )
        error = np.abs(result.weights - entry["weights"]).max()

        assert error <= max(0.5 * 10 ** -entry["weights_digits"], entry["max_abs_weight_error"]) + 1e-9, entry["name"]
        if entry["cr"] is not None and entry["ri_table"] in RANDOM_INDEX:
            assert result.consistency_ratio == pytest.approx(entry["cr"], abs=0.51 * 10 ** -entry["cr_digits"]), entry[
                "name"
            ]
            checked += 1
        if entry["lambda_max"] is not None:
            assert result.lambda_max == pytest.approx(entry["lambda_max"], abs=6e-3), entry["name"]
    assert checked >= 3


@needs_data
def test_published_hierarchies() -> None:
    for entry in json.loads((DATA / "published_hierarchies.json").read_text()):
        criteria = priorities(entry["criteria_matrix"]).weights
        local = [priorities(entry["alternative_matrices"][label]).weights for label in entry["criteria_labels"]]

        assert criteria @ np.stack(local) == pytest.approx(
            entry["target_weights"], abs=0.5 * 10 ** -entry["target_digits"]
        )


def test_published_matrix_in_the_tests_themselves() -> None:
    """Saaty (2008), how much Americans drink of each: one fact that needs no other file."""
    upper = {(0, 1): 9, (0, 2): 5, (0, 3): 2, (0, 4): 1, (0, 5): 1, (0, 6): 1 / 2, (1, 2): 1 / 3, (1, 3): 1 / 9}
    upper |= {(1, 4): 1 / 9, (1, 5): 1 / 9, (1, 6): 1 / 9, (2, 3): 1 / 3, (2, 4): 1 / 4, (2, 5): 1 / 3, (2, 6): 1 / 9}
    upper |= {(3, 4): 1 / 2, (3, 5): 1, (3, 6): 1 / 3, (4, 5): 2, (4, 6): 1 / 2, (5, 6): 1 / 3}
    result = priorities(comparison_matrix(7, [(i, j, a) for (i, j), a in upper.items()]), random_index="saaty2005")

    assert result.weights == pytest.approx([0.177, 0.019, 0.042, 0.116, 0.190, 0.129, 0.327], abs=5e-4)
    assert result.consistency_ratio == pytest.approx(0.022, abs=5e-4)


def test_cycle_is_uniform_and_says_how_bad() -> None:
    """H40: complex eigenvalues, real weights, and a ratio that gives the cycle away."""
    result = priorities([[1, 9, 1 / 9], [1 / 9, 1, 9], [9, 1 / 9, 1]])

    assert result.weights.dtype == np.float64
    assert result.weights == pytest.approx([1 / 3] * 3)
    assert (result.lambda_max, result.consistency_ratio) == (
        pytest.approx(10.111, abs=1e-3),
        pytest.approx(6.13, abs=5e-3),
    )


@pytest.mark.parametrize("count", [1, 2, 3, 15, 16, 25, 50, 100])
def test_defined_for_every_size(count: int) -> None:
    """H41: no NaN at 1 and 2, no end of the table."""
    outcomes = [(i, j, 3.0) for i in range(count) for j in range(i + 1, count)]
    result = priorities(comparison_matrix(count, outcomes))

    assert result.weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert (np.diff(result.weights) < 0).all()
    assert result.consistency_ratio == 0.0 if count <= 2 else 0 < result.consistency_ratio < 1


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([], "square"),
        ([[1, 2]], "square"),
        ([[1, -2], [-0.5, 1]], "positive"),
        ([[1, np.nan], [1, 1]], "finite"),
        ([[1, np.inf], [0, 1]], "finite"),
        ([[1, 3], [3, 1]], r"entries \(0, 1\) and \(1, 0\) are not reciprocal"),
    ],
)
def test_unusable_matrices_are_refused(matrix: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        priorities(matrix)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "outcomes", "message"),
    [
        (0, [], "at least one"),
        (2, [(0, 2, 3.0)], "two different criteria"),
        (2, [(1, 1, 3.0)], "two different criteria"),
        (2, [(0, 1, 0.0)], "over 0"),
        (2, [(0, 1, float("nan"))], "finite"),
        (2, [(0, 1, 3.0), (1, 0, 3.0)], "twice"),
    ],
)
def test_unusable_outcomes_are_refused(count: int, outcomes: list[tuple[int, int, float]], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        comparison_matrix(count, outcomes)


def test_unknown_random_index_names_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="unknown random index table 'x'; known tables: saaty1980"):
        priorities([[1.0]], random_index="x")


@SLOW
@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=12))
def test_consistent_matrix_gives_its_weights_back(raw: list[float]) -> None:
    weights = np.asarray(raw) / np.sum(raw)
    result = priorities(weights[:, None] / weights[None, :])

    assert result.weights == pytest.approx(weights, abs=1e-9)
    assert 0 <= result.consistency_ratio < 1e-9


@SLOW
@given(reciprocal_matrices(), st.randoms(use_true_random=False))
def test_permuting_criteria_permutes_weights(matrix: np.ndarray, random: object) -> None:
    order = list(range(len(matrix)))
    random.shuffle(order)  # type: ignore[attr-defined]

    assert priorities(matrix[np.ix_(order, order)]).weights == pytest.approx(
        priorities(matrix).weights[order], abs=1e-9
    )


@SLOW
@given(reciprocal_matrices())
def test_pairs_add_up_to_the_inconsistency(matrix: np.ndarray) -> None:
    """lambda_max - K is the sum of what each pair adds, and never negative."""
    result = priorities(matrix)
    parts = inconsistency(matrix, result.weights)

    assert np.isfinite(result.weights).all()
    assert (result.weights > 0).all()
    assert np.triu(parts, 1).sum() == pytest.approx(result.lambda_max - len(matrix), abs=1e-8)
    assert result.lambda_max >= len(matrix) - 1e-9


@SLOW
@given(rankings, alphas)
def test_transitive_judgments_keep_their_order_for_any_alpha(ranks: list[int], alpha: float) -> None:
    pairs = [(i, j) for i in range(len(ranks)) for j in range(len(ranks)) if ranks[i] > ranks[j]]
    weights = priorities(comparison_matrix(len(ranks), [(i, j, alpha) for i, j in pairs])).weights
    transposed = priorities(comparison_matrix(len(ranks), [(j, i, alpha) for i, j in pairs])).weights

    for i in range(len(ranks)):
        for j in range(len(ranks)):
            if ranks[i] > ranks[j]:
                assert weights[i] > weights[j]
                assert transposed[i] < transposed[j]
            elif ranks[i] == ranks[j]:
                assert weights[i] == pytest.approx(weights[j], abs=1e-9)
