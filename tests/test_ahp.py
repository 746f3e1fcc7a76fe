"""AHP numerics against published matrices and against what must hold for any."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_plugin.errors import InvalidInput
from reward_plugin.weighting.ahp import RANDOM_INDEX, comparison_matrix, inconsistency, priorities

from .strategies import alphas, incomplete_matrices, rankings, reciprocal_matrices

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


@needs_data
def test_every_random_index_table_is_the_published_one() -> None:
    tables = json.loads((DATA / "random_index_tables.json").read_text())["tables"]

    assert {name.removeprefix("variant_"): tuple(table["ri"]) for name, table in tables.items()} == RANDOM_INDEX


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


@pytest.mark.parametrize("count", [1, 2, 3, 15, 16, 25, 50, 100, 200])
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
        ([[1, -2], [-0.5, 1]], r"\(0, 1\) and \(1, 0\): a comparison is finite and over 0"),
        ([[1, np.nan], [1, 1]], r"\(0, 1\) and \(1, 0\): .*NaN in both orders; got nan and 1.0"),
        ([[1, np.inf], [0, 1]], r"\(0, 1\) .*finite and over 0.*got inf and 0.0"),
        (
            [[1, 3], [3, 1]],
            r"entries \(0, 1\) and \(1, 0\): the two orders are reciprocal; got 3.0 and 3.0, expected 0.3333",
        ),
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
        (2, [(0, 1, -3.0)], r"comparison \(0, 1\): the ratio is a finite number over 0; got -3.0"),
        (2, [(0, 1, "3")], "finite number"),
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


@SLOW
@given(st.integers(1, 6), st.data())
def test_many_at_once_are_each_as_alone(count: int, data: st.DataObject) -> None:
    drawn = [one for one in data.draw(st.lists(incomplete_matrices(6), min_size=1, max_size=8)) if len(one) == count]
    stack = np.stack([*drawn, np.ones((count, count))])
    together = priorities(stack, random_index="mcm")
    parts = inconsistency(stack, together.weights)

    for row, matrix in enumerate(stack):
        alone = priorities(matrix, random_index="mcm")

        assert together.weights[row] == pytest.approx(alone.weights, abs=1e-12)
        assert together.lambda_max[row] == pytest.approx(alone.lambda_max, abs=1e-12)
        assert together.consistency_ratio[row] == pytest.approx(alone.consistency_ratio, abs=1e-12)
        assert parts[row] == pytest.approx(inconsistency(matrix, alone.weights), abs=1e-12)


def test_a_fault_in_a_stack_names_the_matrix_and_the_pair() -> None:
    stack = np.ones((3, 4, 4))
    stack[2, 1, 3] = 5.0
    with pytest.raises(InvalidInput, match=r"matrix 2, entries \(1, 3\) and \(3, 1\): the two orders are reciprocal"):
        priorities(stack)
    with pytest.raises(InvalidInput, match=r"got shape \(1, 2, 2, 2\)"):
        priorities(np.ones((1, 2, 2, 2)))
    with pytest.raises(InvalidInput, match="holds numbers"):
        priorities([["a", "b"], ["c", "d"]])


def test_incomplete_matrix_by_hand() -> None:
    """Three comparisons along a line leave no cycle and are met exactly."""
    line = priorities(comparison_matrix(4, [(0, 1, 2.0), (1, 2, 3.0), (3, 2, 6.0)], unasked=np.nan))

    assert line.weights == pytest.approx(np.array([6, 3, 1, 6]) / 16)
    assert line.consistency_ratio == 0
    # A square 0-1-2-3-0 with one odd side: the log of its excess, log 16, is spread evenly over the four sides
    square = [(0, 1, 2.0), (1, 2, 2.0), (2, 3, 2.0), (3, 0, 2.0)]
    even = priorities(comparison_matrix(4, square, unasked=np.nan))

    assert even.weights == pytest.approx([0.25] * 4)
    # Each side adds (2 + 1/2 - 2) / 4; two pairs of six are missing, which leaves a third of the cycles
    assert even.lambda_max - 4 == pytest.approx(4 * 0.5 / 4)
    assert even.consistency_ratio == pytest.approx((0.5 / 3) / (0.90 * (1 - 4 / 6)))


@pytest.mark.parametrize("stacked", [False, True])
def test_comparisons_in_parts_are_refused(stacked: bool) -> None:
    matrix = comparison_matrix(4, [(0, 2, 3.0), (1, 3, 3.0)], unasked=np.nan)
    value = np.stack([np.ones((4, 4)), matrix, matrix]) if stacked else matrix
    with pytest.raises(InvalidInput, match=r"in 2 parts \(\[0, 2\]; \[1, 3\]\); compare at least one pair"):
        priorities(value)


@SLOW
@given(st.lists(st.floats(0.05, 1), min_size=1, max_size=9), st.data())
def test_what_is_left_of_a_consistent_matrix_gives_its_weights_back(raw: list[float], data: st.DataObject) -> None:
    weights = np.asarray(raw) / np.sum(raw)
    count = len(weights)
    pattern = data.draw(incomplete_matrices(9).filter(lambda one: len(one) >= count))[:count, :count]
    matrix = np.where(np.isnan(pattern), np.nan, weights[:, None] / weights[None, :])
    result = priorities(matrix)

    assert result.weights == pytest.approx(weights, abs=1e-9)
    assert result.consistency_ratio == pytest.approx(0, abs=1e-7)


@SLOW
@given(incomplete_matrices(), st.randoms(use_true_random=False))
def test_laws_hold_for_incomplete_matrices(matrix: np.ndarray, random: object) -> None:
    result = priorities(matrix)
    order = list(range(len(matrix)))
    random.shuffle(order)  # type: ignore[attr-defined]

    assert (result.weights > 0).all()
    assert priorities(matrix[np.ix_(order, order)]).weights == pytest.approx(result.weights[order], abs=1e-9)
    assert np.triu(inconsistency(matrix, result.weights), 1).sum() == pytest.approx(
        result.lambda_max - len(matrix), abs=1e-8
    )
    assert result.consistency_ratio >= 0


@SLOW
@given(reciprocal_matrices(6), st.integers(0, 5))
def test_duplicates_weigh_the_same(matrix: np.ndarray, which: int) -> None:
    """A criterion that stands twice: its copy compares like it with all others, and as equal with it."""
    one = which % len(matrix)
    doubled = np.pad(matrix, (0, 1), constant_values=1.0)
    doubled[-1, :-1], doubled[:-1, -1] = matrix[one], matrix[:, one]
    weights = priorities(doubled).weights

    assert weights[-1] == pytest.approx(weights[one], abs=1e-9)


@SLOW
@given(rankings, alphas)
def test_turning_every_judgment_around_turns_the_order_around(ranks: list[int], alpha: float) -> None:
    outcomes = [(i, j, alpha) for i in range(len(ranks)) for j in range(len(ranks)) if ranks[i] > ranks[j]]
    matrix = comparison_matrix(len(ranks), outcomes)
    weights, turned = priorities(matrix).weights, priorities(matrix.T).weights

    for i, j in np.ndindex(matrix.shape):
        if ranks[i] > ranks[j]:
            assert weights[i] > weights[j]
            assert turned[i] < turned[j]


@SLOW
@given(reciprocal_matrices())
def test_lambda_max_is_the_size_only_where_consistent(matrix: np.ndarray) -> None:
    result = priorities(matrix)
    ratios = result.weights[:, None] / result.weights[None, :]
    consistent = bool(np.allclose(matrix, ratios, rtol=1e-6))

    assert (result.lambda_max - len(matrix) < 1e-9) == consistent
