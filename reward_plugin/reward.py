"""RubricReward: a rubric as the reward function of TRL's GRPOTrainer."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from reward_plugin import jsonl, yaml_text
from reward_plugin.engines import Engine, as_engine
from reward_plugin.errors import InvalidInput, InvalidRubric, VerifierUnavailable
from reward_plugin.graph import Program, compile_rubric, run
from reward_plugin.graph.execution import Mode
from reward_plugin.messages import completion_shapes, completion_text, prompt_text
from reward_plugin.metrics import call_metrics
from reward_plugin.rubric import Rubric
from reward_plugin.scores import Score, trace_record, unknown_reason, unscored
from reward_plugin.store import open_store
from reward_plugin.verifier import Job, ReplyMode, Tally, Verifier
from reward_plugin.weighting.designs import PairsMode
from reward_plugin.weighting.icw import Icw, Revision
from reward_plugin.weighting.judgments import Entries
from reward_plugin.weighting.weigher import DECLARED, Inconsistent, Weigher, Weighting, method_of
from reward_plugin.weighting.weights import Weights, given, uniform
from reward_plugin.weighting.written import read_weights

RESERVED = (
    *("prompts", "prompt", "completions", "completion", "completion_ids"),
    *("trainer_state", "log_extra", "log_metric", "environments"),
)
"""Names that TRL passes itself: no rubric column can have one of them."""

_DEAD_CALLS = 3


def default_store() -> Path:
    """Return the per-user file that results are kept in unless another is given."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "reward-plugin" / "store.sqlite"


class RubricReward:
    """A reward function for `GRPOTrainer(reward_funcs=...)`, and a scorer outside of training.

    - `verifier`: the engine that gives verdicts, by name (`reward_plugin.engines.open_engine`) or as an object; None will
      do where every criterion has a check. `weigher`: the engine that compares criteria, the verifier unless given.
    - `rubric`: one rubric for every prompt; without it, the data set column `rubric_column` holds each prompt's.
    - `weighting`: `"icw"` compares criteria once per prompt; its rivals are `"icw-no-revision"`, `"icw-single-query"` (all
      pairs in one question), `"direct"` (a number for each criterion) and `"rrd-wu"` (from verdicts on sampled responses).
      `"given"` takes the rubric's own weights, `"uniform"` none. `alpha`, `tau`, `rounds`, `revision`, `pairs`, `entries`
      and `random_index` are those of `reward_plugin.weighting.icw.Icw`.
    - `inconsistent`: what becomes of weights whose consistency ratio stays over `tau`: `"keep"` them, flagged, or take
      `"uniform"` ones.
    - `weights_column`: the data set column with weights that `reward-plugin weigh` computed ahead; they are taken where
      the column is there and the weighting asks a model.
    - `verdict`, `comparison`: `"token"` reads one token's probabilities, `"json"` asks for a reason first.
    - `mode`: `"hard"` verdicts, or `"expected"` values from their probabilities.
    - `store`: a file for weights, shared by processes and resumed runs, or a folder shared by machines, like
      `s3://bucket/weights/` (by fsspec); None keeps them in this process.
    - `traces`: a JSONL file that gets one line a completion.
    - `name`: what TRL logs the reward under; two rewards in one run need two.

    Building one starts no model. Raises `InvalidInput` for an unusable argument.

    >>> from reward_plugin.engines import ScriptedEngine
    >>> reward = RubricReward(ScriptedEngine(lambda request: {"Yes": 0.9, "No": 0.1}), weighting="uniform", store=None)
    >>> reward(prompts=["Name a colour."], completions=["Red."], rubric=[["Names a colour", "Is polite"]])
    [1.0]
    """

    def __init__(
        self,
        verifier: str | Engine | None = None,
        *,
        weigher: str | Engine | None = None,
        rubric: object = None,
        rubric_column: str = "rubric",
        weighting: Weighting = "icw",
        alpha: float = 3.0,
        tau: float = 0.1,
        rounds: int = 3,
        revision: Revision = "targeted",
        pairs: PairsMode = "all",
        entries: Entries = "winner",
        random_index: str = "saaty1980",
        inconsistent: Inconsistent = "keep",
        weights_column: str = "weights",
        verdict: ReplyMode = "token",
        comparison: ReplyMode = "token",
        mode: Mode = "hard",
        store: str | Path | None = "default",
        traces: str | Path | None = None,
        name: str = "rubric_reward",
    ) -> None:
        for argument, value, choices in (
            ("weighting", weighting, get_args(Weighting)),
            ("revision", revision, get_args(Revision)),
            ("pairs", pairs, get_args(PairsMode)),
            ("entries", entries, get_args(Entries)),
            ("inconsistent", inconsistent, get_args(Inconsistent)),
            ("verdict", verdict, get_args(ReplyMode)),
            ("comparison", comparison, get_args(ReplyMode)),
            ("mode", mode, get_args(Mode)),
        ):
            if value not in choices:
                raise InvalidInput(f"{argument} is one of {', '.join(map(repr, choices))}; got {value!r}")
        for argument, column in (("rubric_column", rubric_column), ("weights_column", weights_column)):
            if not isinstance(column, str) or not column or column in RESERVED:
                raise InvalidInput(f"{argument} {column!r}: TRL passes that name itself; rename the column")
        if not isinstance(name, str) or not name:
            raise InvalidInput(f"name is a non-empty string; got {name!r}")
        for argument, path in (("store", store), ("traces", traces)):
            if path is not None and not isinstance(path, str | Path):
                raise InvalidInput(f"{argument} is a path, or None; got {path!r}")
        if traces is not None and Path(traces).is_dir():
            raise InvalidInput(f"traces {traces}: is a folder; give a file, like {Path(traces) / 'traces.jsonl'}")
        self.__name__ = name
        self.rubric = None if rubric is None else _one_rubric(rubric)
        self.rubric_column = rubric_column
        self.weighting = weighting
        self.mode: Mode = mode
        self.traces = None if traces is None else Path(traces)
        self.weights_column = weights_column
        self.store = open_store(default_store() if store == "default" else store)
        judge = as_engine(verifier)
        self.verifier = Verifier(judge, reply=verdict)
        icw = Icw(alpha, tau, rounds, revision, pairs, comparison, entries, random_index)
        self.weigher = None
        if weighting not in DECLARED:
            asked = judge if weigher is None else as_engine(weigher)
            self.weigher = Weigher(asked, self.store, method_of(weighting, icw, Verifier(judge, verdict)), inconsistent)
        self.last_scores: list[Score] = []
        self.last_metrics: dict[str, float] = {}
        self._dead_calls = 0
        self._lock = threading.Lock()

    @classmethod
    def from_config(cls, path: str | Path, **overrides: Any) -> "RubricReward":
        """Return the reward that a YAML file of constructor arguments describes; `overrides` win.

        Raises `InvalidInput` for an unreadable file or an unknown argument.
        """
        import inspect

        try:
            config = yaml_text.load(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidInput(f"reward config {path}: cannot be read: {error}") from error
        known = [name for name in inspect.signature(cls.__init__).parameters if name != "self"]
        if not isinstance(config, Mapping) or not set(config) <= set(known):
            unknown = sorted(set(map(str, config)) - set(known)) if isinstance(config, Mapping) else [repr(config)]
            raise InvalidInput(f"reward config {path}: unknown {', '.join(unknown)}; known: {', '.join(known)}")
        return cls(**(dict(config) | overrides))

    @classmethod
    def from_environment(cls) -> "RubricReward":
        """Return the reward of the file that `REWARD_PLUGIN_CONFIG` names. Raises `InvalidInput` when it is not set."""
        path = os.environ.get("REWARD_PLUGIN_CONFIG")
        if not path:
            raise InvalidInput(
                "REWARD_PLUGIN_CONFIG is not set: it names the YAML file of RubricReward arguments that "
                "reward_plugin.rubric_reward is built from"
            )
        return cls.from_config(path)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        *,
        trainer_state: Any = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Return one reward in [0, 1] a completion, None where it could not be known. Called by the trainer.

        Raises `InvalidInput` for input that no retry would mend, `VerifierUnavailable` when several calls in a row could
        not be judged at all.
        """
        rubrics = self._rubrics(columns, len(completions))
        written = columns.get(self.weights_column) if self.weigher is not None else None
        step = getattr(trainer_state, "global_step", None)
        scores = self._score(prompts, completions, rubrics, completion_ids, {"phase": "train", "step": step}, written)
        if log_metric is not None:
            for name, value in self.last_metrics.items():
                log_metric(f"reward_plugin/{name}", value)
        if log_extra is not None:
            log_extra("rubric_explanation", [score.explanation for score in scores])
        return [score.value for score in scores]

    def score(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        rubrics: object = None,
        *,
        tags: Mapping[str, Any] | None = None,
    ) -> list[Score]:
        """Return the `Score` of each completion. `rubrics` has one rubric each, or is one `Rubric` for all.

        `tags` are written into the traces. Raises as `__call__` does.
        """
        if rubrics is None and self.rubric is None:
            raise InvalidInput("no rubric: pass `rubrics`, or build the reward with `rubric=`")
        shared = self.rubric if rubrics is None else rubrics if isinstance(rubrics, Rubric) else None
        each = [shared] * len(completions) if shared is not None else rubrics
        if isinstance(each, str | Mapping) or not isinstance(each, Sequence):
            raise InvalidInput(f"rubrics: expected a list with one rubric a completion, or a Rubric; got {each!r}")
        return self._score(prompts, completions, _parsed(each, len(completions), "rubrics"), None, dict(tags or {}))

    def close(self) -> None:
        """Give back the models; the next call starts them anew."""
        self.verifier.engine.close()
        if self.weigher is not None and self.weigher.engine is not self.verifier.engine:
            self.weigher.engine.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def _rubrics(self, columns: Mapping[str, Any], count: int) -> list[Rubric | None]:
        if self.rubric is not None:
            return [self.rubric] * count
        if self.rubric_column not in columns:
            raise InvalidInput(
                f"the data set has no column {self.rubric_column!r} (columns: {', '.join(sorted(columns)) or 'none'}); "
                "add it (train/prepare.py does), pass rubric_column= or rubric=, and keep remove_unused_columns=False"
            )
        return _parsed(columns[self.rubric_column], count, f"column {self.rubric_column!r}")

    def _score(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        rubrics: Sequence[Rubric | None],
        completion_ids: Sequence[Sequence[int]] | None,
        tags: dict[str, Any],
        written: Sequence[Any] | None = None,
    ) -> list[Score]:
        if len(prompts) != len(completions):
            raise InvalidInput(f"{len(prompts)} prompts came with {len(completions)} completions: expected one each")
        completion_shapes(completions)
        asked = [prompt_text(prompt, row) for row, prompt in enumerate(prompts)]
        said = [completion_text(completion, row) for row, completion in enumerate(completions)]
        with self._lock:
            self.verifier.tally = verifier = Tally()
            weigher = Tally()
            if self.weigher is not None:
                self.weigher.tally = weigher
            hits = self.store.hits
            # One yardstick a group: by content, since a group may be split over calls and ranks
            yardsticks = self._yardsticks(asked, rubrics, written)
            scores = self._judged(asked, said, rubrics, yardsticks)
            scores = [
                replace(score, trace={**tags, "prompt": asked[row], "completion": said[row], **score.trace})
                for row, score in enumerate(scores)
            ]
            if self.traces is not None:
                jsonl.append(self.traces, [score.trace for score in scores])
            lengths = [len(ids) for ids in completion_ids] if completion_ids else [len(text.split()) for text in said]
            self.last_scores = scores
            self.last_metrics = call_metrics(
                scores, asked, lengths, list(yardsticks.values()), verifier, weigher, self.store.hits - hits
            )
            self._count_dead_calls(scores)
        return scores

    def _yardsticks(
        self, asked: Sequence[str], rubrics: Sequence[Rubric | None], written: Sequence[Any] | None
    ) -> dict[tuple[str, str], Weights]:
        items = {(p, r.digest): (p, r) for p, r in zip(asked, rubrics, strict=True) if r is not None}
        if self.weigher is None:
            declared = given if self.weighting == "given" else uniform
            return {key: Weights(declared(rubric)) for key, (_, rubric) in items.items()}
        found: dict[tuple[str, str], Weights] = {}
        for row, (prompt, rubric) in enumerate(zip(asked, rubrics, strict=True)):
            if rubric is not None and written is not None and written[row] is not None:
                where = f"column {self.weights_column!r}, row {row}"
                weights = read_weights(written[row], rubric, self.weighting, where)
                found[prompt, rubric.digest] = self.weigher.settled(rubric, weights)
        missing = {key: item for key, item in items.items() if key not in found}
        return found | dict(zip(missing, self.weigher.weigh(list(missing.values())), strict=True))

    def _judged(
        self,
        asked: Sequence[str],
        said: Sequence[str],
        rubrics: Sequence[Rubric | None],
        yardsticks: Mapping[tuple[str, str], Weights],
    ) -> list[Score]:
        scores: list[Score] = [unscored("no rubric")] * len(asked)
        rows: list[tuple[int, Rubric, Weights]] = []
        for row, rubric in enumerate(rubrics):
            if rubric is None:
                continue
            weights = yardsticks[asked[row], rubric.digest]
            if weights.why is not None:
                scores[row] = unscored(f"weights: {weights.why}")
            else:
                rows.append((row, rubric, weights))
        verdicts = self.verifier.judge([Job(asked[row], said[row], rubric.criteria) for row, rubric, _ in rows])
        programs: dict[tuple[str, str], tuple[Program, list[int]]] = {}
        for place, (row, rubric, weights) in enumerate(rows):
            key = (asked[row], rubric.digest)
            if key not in programs:
                programs[key] = (compile_rubric(rubric, weights.weights), [])
            programs[key][1].append(place)
        for program, places in programs.values():
            result = run(program, [verdicts[place] for place in places], mode=self.mode)
            for index, (place, value) in enumerate(zip(places, result.values, strict=True)):
                row, rubric, weights = rows[place]
                bounds = (float(result.low[index]), float(result.high[index]))
                why = unknown_reason(verdicts[place]) if value is None else None
                score = Score(value, bounds, verdicts[place], weights.weights, result.bound[index], why)
                nodes = {one: [float(low[index]), float(high[index])] for one, (low, high) in result.nodes.items()}
                trace = trace_record(rubric, program, verdicts[place], self.mode) | {
                    "weights": dict(weights.weights),
                    "weighting": self.weighting,
                    "consistency_ratio": weights.consistency_ratio,
                    "flagged": weights.flagged,
                    "nodes": nodes,
                    "bound": list(score.bound),
                    "value": value,
                    "bounds": list(bounds),
                    "why": why,
                    "explanation": score.explanation,
                }
                scores[row] = replace(score, trace=trace)
        return scores

    def _count_dead_calls(self, scores: Sequence[Score]) -> None:
        judged = [v for score in scores for v in score.verdicts.values() if v.by == "model"]
        unweighed = [score.why for score in scores if score.why is not None and score.why.startswith("weights:")]
        dead = all(verdict.probability is None for verdict in judged) and bool(judged or unweighed)
        self._dead_calls = self._dead_calls + 1 if dead else 0
        if self._dead_calls >= _DEAD_CALLS:
            reasons = sorted({verdict.why for verdict in judged if verdict.why} | set(unweighed))
            raise VerifierUnavailable(
                f"nothing could be judged in {self._dead_calls} calls in a row ({'; '.join(reasons)}); "
                f"see to {self.verifier.engine.name}, then resume: what was computed is in the store"
            )


def _one_rubric(value: object) -> Rubric:
    is_path = isinstance(value, Path) or (isinstance(value, str) and value.endswith((".yaml", ".yml", ".json")))
    return Rubric.load(value) if is_path else Rubric.parse(value)  # type: ignore[arg-type]


def _parsed(values: Any, count: int, where: str) -> list[Rubric | None]:
    if values is None or isinstance(values, str) or not hasattr(values, "__len__"):
        raise InvalidInput(f"{where}: expected a list with one rubric a completion; got {values!r}")
    if len(values) != count:
        raise InvalidInput(f"{where}: expected {count} rubrics, one a completion; got {len(values)}")
    rubrics: list[Rubric | None] = []
    for row, value in enumerate(values):
        try:
            rubrics.append(None if value is None else Rubric.parse(value))
        except InvalidRubric as error:
            raise InvalidRubric(f"{where}, row {row}: {error}") from error
    return rubrics
