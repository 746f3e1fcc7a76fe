"""RubricReward under TRL's contract, with a scripted model."""

import inspect
import json
import pickle
from pathlib import Path

import pytest

from reward_plugin import Rubric, RubricReward, ScriptedEngine
from reward_plugin.engines import Reply, Request
from reward_plugin.errors import EngineError, InvalidInput, InvalidText, VerifierUnavailable
from reward_plugin.graph import replay
from reward_plugin.metrics import METRICS

RUBRIC = [
    {"id": "colour", "text": "Names a colour"},
    {"id": "brief", "text": "At most 3 words", "check": {"max_words": 3}},
    {"id": "polite", "text": "No insult", "gate": "veto"},
    {"id": "prose", "text": "No list", "gate": {"cap": 0.4}, "check": {"not_regex": "^- "}},
]


def oracle(request: Request) -> dict[str, float]:
    """Judge by words; the first shown of two criteria never wins unless it is `colour`."""
    meta = request.meta
    if meta["kind"] == "comparison":
        return {"1": 1.0} if meta["first"] == "colour" else {"2": 1.0}
    met = {"Names a colour": "red" in meta["response"].lower(), "No insult": "fool" not in meta["response"].lower()}
    return {"Yes": 1.0} if met[meta["criterion"]] else {"No": 1.0}


def make(**arguments: object) -> RubricReward:
    return RubricReward(ScriptedEngine(oracle), **({"store": None, "rubric": RUBRIC} | arguments))  # type: ignore[arg-type]


def test_rewards_follow_weights_and_gates() -> None:
    """Colour weighs 3 to 1; the veto gives 0, the cap at most 0.4."""
    completions = ["red", "red is a very fine colour", "blue", "red fool", "- red"]
    expected = [1.0, 0.75, 0.25, 0.0, 0.4]

    assert expected == pytest.approx(make()(prompts=["Colour?"] * 5, completions=completions))


@pytest.mark.parametrize(("weighting", "value"), [("uniform", 0.5), ("given", 0.2), ("icw", 0.25)])
def test_weighting_choices(weighting: str, value: float) -> None:
    rubric = [{**RUBRIC[0], "weight": 4.0}, *RUBRIC[1:]]

    assert [pytest.approx(value)] == make(weighting=weighting, rubric=rubric)(prompts=["Colour?"], completions=["blue"])


def test_trl_keywords_and_unknown_columns_are_taken() -> None:
    """H03: everything that the trainer passes, and nothing but the two that matter."""
    logged: dict[str, float] = {}
    extra: dict[str, list[str]] = {}
    reward = make(rubric=None)
    values = reward(
        prompts=["Colour?"],
        completions=["red"],
        completion_ids=[[1]],
        trainer_state=type("State", (), {"global_step": 7})(),
        log_extra=extra.__setitem__,
        log_metric=logged.__setitem__,
        environments=[object()],
        answer=["x"],
        some_new_key=[None],
        rubric=[json.dumps(RUBRIC)],
    )

    assert values == [1.0]
    assert set(logged) == {f"reward_plugin/{name}" for name in METRICS}
    assert extra["rubric_explanation"][0].startswith("1.000: met colour (0.75), brief (0.25)")
    assert reward.last_scores[0].trace["step"] == 7


@pytest.mark.parametrize("column", ["prompts", "completions", "completion_ids", "log_metric", "environments", ""])
def test_reserved_rubric_column_is_refused(column: str) -> None:
    with pytest.raises(InvalidInput, match="rubric_column"):
        RubricReward(rubric_column=column)


def test_missing_column_names_the_way_out() -> None:
    with pytest.raises(InvalidInput, match=r"no column 'rubric' \(columns: answer\).*remove_unused_columns=False"):
        make(rubric=None)(prompts=["a"], completions=["b"], answer=["c"])


def test_null_rubric_leaves_only_its_row_unscored() -> None:
    values = make(rubric=None)(prompts=["a", "a"], completions=["red", "red"], rubric=[None, RUBRIC])

    assert values == [None, 1.0]


def test_malformed_rubric_names_its_row() -> None:
    with pytest.raises(InvalidInput, match="column 'rubric', row 1: empty rubric"):
        make(rubric=None)(prompts=["a", "a"], completions=["red", "red"], rubric=[RUBRIC, []])


def test_name_and_pickle() -> None:
    """H05: a settable name, and no engine, lock or connection in the pickle."""
    reward = RubricReward("vllm:some/model", name="rubric_a")
    copy = pickle.loads(pickle.dumps(reward))

    assert (copy.__name__, copy.verifier.engine.name) == ("rubric_a", "vllm:some/model")
    assert RubricReward().__name__ == "rubric_reward"


def test_pickled_copy_scores_the_same(tmp_path: Path) -> None:
    reward = make(store=tmp_path / "s.sqlite")
    before = reward(prompts=["Colour?"], completions=["blue"])
    copy = pickle.loads(pickle.dumps(reward))

    assert before == copy(prompts=["Colour?"], completions=["blue"])
    assert copy.store.hits == 1


def test_call_is_synchronous() -> None:
    """H06: TRL calls it, and older releases do not await an instance."""
    reward = make()

    assert not inspect.iscoroutinefunction(reward)
    assert not inspect.iscoroutinefunction(reward.__call__)
    assert isinstance(reward(prompts=["a"], completions=["red"]), list)


@pytest.mark.parametrize(
    "completion",
    [
        "red",
        [{"role": "assistant", "content": "red"}],
        [{"content": "red"}],
        [{"role": "assistant", "content": [{"type": "text", "text": "re"}, {"type": "text", "text": "d"}]}],
        [{"role": "assistant", "content": "<think>fool</think>red", "reasoning_content": "fool"}],
    ],
)
@pytest.mark.parametrize("prompt", ["Colour?", [{"role": "user", "content": "Colour?"}]])
def test_shapes_of_the_same_text_score_alike(prompt: object, completion: object) -> None:
    """H08: plain, conversational and block content, reasoning left out."""
    assert make()(prompts=[prompt], completions=[completion]) == [1.0]


def test_mixed_shapes_are_refused_by_row() -> None:
    with pytest.raises(InvalidText, match=r"completions\[1\] is messages"):
        make()(prompts=["a", "a"], completions=["red", [{"content": "red"}]])


def test_group_layout_does_not_matter() -> None:
    """H11: whole groups, split groups, uneven ones and single rows give each row the same reward."""
    rows = [("P1", "red"), ("P1", "blue"), ("P1", "red fool"), ("P2", "red"), ("P2", "- red")]
    whole = make()(prompts=[p for p, _ in rows], completions=[c for _, c in rows])
    for cuts in ([1, 2, 3, 4], [2], [3], [1, 4]):
        reward = make()
        parts: list[float | None] = []
        for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            chunk = rows[start:end]
            parts += reward(prompts=[p for p, _ in chunk], completions=[c for _, c in chunk])

        assert whole == parts


def test_weights_are_asked_once_a_prompt() -> None:
    engine = ScriptedEngine(oracle)
    reward = RubricReward(engine, rubric=RUBRIC, store=None)
    for _ in range(3):
        reward(prompts=["P1", "P1", "P2"], completions=["red", "blue", "red"])

    assert sum(request.meta["kind"] == "comparison" for request in engine.requests) == 2 * 2


def test_unknown_verdict_gives_none_and_says_why() -> None:
    """H26: neither 0 nor the weight of the others."""

    def answer(request: Request) -> object:
        lost = request.meta["kind"] == "verdict" and request.meta["response"] == "red lost"
        return Reply(error="timeout") if lost else oracle(request)

    reward = RubricReward(ScriptedEngine(answer), rubric=RUBRIC, store=None)  # type: ignore[arg-type]
    values = reward(prompts=["a", "a"], completions=["red lost", "red"])

    assert values == [None, 1.0]
    assert reward.last_scores[0].why == "colour: timeout, polite: timeout"
    assert reward.last_metrics["unknown_share"] == 0.5


def test_missing_verdict_that_cannot_matter_is_no_loss() -> None:
    """A cap at 0 already fell: whatever the lost verdict was, the score is 0."""
    rubric = [
        {"id": "a", "text": "lost"},
        {"id": "b", "text": "No list", "gate": "veto", "check": {"not_regex": "^- "}},
    ]
    reward = RubricReward(ScriptedEngine(lambda _: Reply(error="timeout")), rubric=rubric, store=None)

    assert reward(prompts=["a", "a"], completions=["- x", "x"]) == [0.0, None]


def test_failed_weights_give_none_and_are_asked_again(tmp_path: Path) -> None:
    down = True

    def answer(request: Request) -> object:
        return Reply(error="timeout") if down and request.meta["kind"] == "comparison" else oracle(request)

    reward = RubricReward(ScriptedEngine(answer), rubric=RUBRIC, store=tmp_path / "s.sqlite")  # type: ignore[arg-type]

    assert reward(prompts=["a"], completions=["red"]) == [None]
    assert reward.last_scores[0].why == "weights: 2 of 2 comparisons: timeout"
    down = False
    assert reward(prompts=["a"], completions=["red"]) == [1.0]


def test_dead_judge_raises_after_three_calls() -> None:
    """A dead judge must not train silently; one call that works starts the count anew."""
    down = True
    engine = ScriptedEngine(lambda request: Reply(error="unreachable") if down else oracle(request))  # type: ignore[arg-type]
    reward = RubricReward(engine, rubric=RUBRIC, weighting="uniform", store=None)

    def call() -> list[float | None]:
        return reward(prompts=["a"], completions=["red"])

    assert [call(), call()] == [[None], [None]]
    down = False
    assert call() == [1.0]
    down = True
    assert [call(), call()] == [[None], [None]]
    with pytest.raises(VerifierUnavailable, match=r"3 calls in a row.*unreachable"):
        call()


def test_empty_completion_gets_the_floor_without_a_model() -> None:
    engine = ScriptedEngine(oracle)
    reward = RubricReward(engine, rubric=RUBRIC, weighting="uniform", store=None)

    assert reward(prompts=["a", "a"], completions=["", " \n"]) == [0.0, 0.0]
    assert engine.requests == []


def test_traces_replay_to_the_same_bits(tmp_path: Path) -> None:
    reward = make(traces=tmp_path / "t.jsonl", mode="expected")
    reward.verifier.engine.answer = lambda r: oracle(r) if r.meta["kind"] == "comparison" else {"Yes": 0.7, "No": 0.3}  # type: ignore[attr-defined]
    values = reward(prompts=["a"] * 3, completions=["red", "a longer one here", "- x"])
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]

    assert [replay(line) for line in lines] == values
    assert [line["value"] for line in lines] == values


def test_hostile_text_survives_the_trace(tmp_path: Path) -> None:
    """Lone surrogates, NUL and line separators: one line a completion, and the text comes back."""
    texts = ["red \ud800", "red \x00", "red \u2028 x", "red \U0001f600", "red" + "!" * 1_000_000]
    values = make(traces=tmp_path / "t.jsonl")(prompts=["a\udfff"] * 5, completions=texts)
    lines = (tmp_path / "t.jsonl").read_bytes().split(b"\n")

    assert all(value is not None for value in values)
    assert [json.loads(line)["completion"] for line in lines if line] == texts


def test_metrics_have_the_same_names_and_no_nan_on_every_call() -> None:
    """H14: names that differ between ranks make a gather hang."""
    reward = make(rubric=None)
    calls = [
        {"prompts": [], "completions": [], "rubric": []},
        {"prompts": ["a"], "completions": [""], "rubric": [None]},
        {"prompts": ["a", "a"], "completions": ["red", "blue"], "rubric": [RUBRIC, RUBRIC]},
    ]
    for call in calls:
        logged: dict[str, float] = {}
        reward(**call, log_metric=logged.__setitem__)  # type: ignore[arg-type]

        assert tuple(logged) == tuple(f"reward_plugin/{name}" for name in METRICS)
        assert all(value == value for value in logged.values())


def test_score_takes_one_rubric_or_one_each() -> None:
    reward = make(rubric=None)
    rubric = Rubric.parse(RUBRIC)

    assert [s.value for s in reward.score(["a", "a"], ["red", "blue"], rubric)] == [1.0, 0.25]
    assert [s.value for s in reward.score(["a"], ["red"], [RUBRIC])] == [1.0]
    with pytest.raises(InvalidInput, match="expected 2 rubrics"):
        reward.score(["a", "a"], ["red", "blue"], [RUBRIC])
    with pytest.raises(InvalidInput, match="no rubric"):
        reward.score(["a"], ["red"])


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(InvalidInput, match="2 prompts came with 1 completions"):
        make()(prompts=["a", "b"], completions=["red"])


def test_no_model_is_needed_where_checks_decide_everything() -> None:
    reward = RubricReward(rubric=[{"text": "short", "check": {"max_words": 2}}], weighting="uniform")

    assert reward(prompts=["a"], completions=["one two"]) == [1.0]
    with pytest.raises(InvalidInput, match="a verdict needs a model: pass verifier="):
        RubricReward(rubric=["Is kind"], weighting="uniform")(prompts=["a"], completions=["b"])


def test_config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "reward.yaml"
    path.write_text("verifier: hf:some/model\nweighting: given\n")
    monkeypatch.setenv("REWARD_PLUGIN_CONFIG", str(path))

    assert RubricReward.from_environment().weighting == "given"
    assert RubricReward.from_config(path, weighting="uniform").weighting == "uniform"
    path.write_text("verifer: x\n")
    with pytest.raises(InvalidInput, match="unknown verifer; known: verifier, weigher"):
        RubricReward.from_config(path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        RubricReward.from_config(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weighting": "ahp"}, "weighting is one of"),
        ({"verdict": "text"}, "verdict is one of"),
        ({"mode": "soft"}, "mode is one of"),
        ({"verifier": "gpt-4"}, "unknown engine 'gpt-4'"),
        ({"alpha": 0.5}, "alpha"),
        ({"alpha": "3"}, "alpha"),
        ({"tau": "x"}, "tau"),
        ({"store": 5}, "store is a path"),
        ({"traces": "."}, "traces .: is a folder"),
        ({"verifier": 3}, "an engine is a name"),
        ({"name": ""}, "name"),
        ({"rubric": []}, "empty rubric"),
    ],
)
def test_unusable_arguments_are_refused_at_construction(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        RubricReward(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("rubrics", [None, "x", 5])
def test_rubric_column_that_is_no_list_is_refused(rubrics: object) -> None:
    with pytest.raises(InvalidInput, match="column 'rubric': expected a list with one rubric a completion"):
        make(rubric=None)(prompts=["a"], completions=["red"], rubric=rubrics)


@pytest.mark.parametrize("logprob", [float("nan"), float("inf"), 5.0])
def test_numbers_that_are_no_log_probabilities_leave_the_verdict_unknown(logprob: float) -> None:
    engine = ScriptedEngine(lambda _: Reply(text="Yes", logprobs={"Yes": logprob}))
    reward = RubricReward(engine, rubric=["x"], weighting="uniform", store=None)

    assert reward(prompts=["a"], completions=["b"]) == [None]
    assert reward.last_scores[0].why == "x: bad_logprobs"


def test_engine_that_loses_a_reply_is_named() -> None:
    class Lossy(ScriptedEngine):
        def complete(self, requests: object) -> list[Reply]:
            return []

    with pytest.raises(EngineError, match="engine lossy returned 0 replies to 1 requests"):
        RubricReward(Lossy(oracle, name="lossy"), rubric=["x"], weighting="uniform", store=None)(
            prompts=["a"], completions=["b"]
        )


def test_star_import_needs_no_config() -> None:
    names: dict[str, object] = {}
    exec("from reward_plugin import *", names)

    assert "RubricReward" in names
    assert "rubric_reward" not in names
