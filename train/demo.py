"""The whole product on a small model: train with a rubric reward, compare held-out answers before and after.

    ./scripts/demo
    python train/demo.py --config configs/demo/grpo.yaml --seed 2 --output_dir runs/demo-2

Writes `traces.jsonl`, `metrics.jsonl`, `summary.json` and `report.html` to `output_dir`.
"""

import json
import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Both say what the demo says better, at length
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("PYTHONWARNINGS", "ignore")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import numpy as np
import torch
import transformers
from rich.console import Console
from scipy.stats import bootstrap
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, ModelConfig, TrlParser

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reward_plugin import Rubric, RubricReward, Score, jsonl
from reward_plugin.errors import InvalidInput, RewardPluginError
from reward_plugin.experiments.report import write_report
from train.grpo import RubricArguments, build_trainer
from train.prepare import prepare

console = Console(highlight=False)
CONFIDENCE = 0.95


@dataclass
class DemoArguments(RubricArguments):
    """What the demo adds."""

    prompts: str = field(default="configs/demo/prompts.jsonl", metadata={"help": "JSONL with a split a line."})
    system: str = field(default="Answer in one short sentence.", metadata={"help": "System message of every prompt."})
    heldout_samples: int = field(default=4, metadata={"help": "Answers a held-out prompt, before and after."})


class Clock:
    """Seconds by part of the run."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = defaultdict(float)

    def time(self, part: str, call: Any) -> Any:
        """Return `call` with its duration added to `part`."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.parts[part] += time.perf_counter() - start

        return timed


class Progress(TrainerCallback):
    """Prints a line a step and keeps it in `metrics.jsonl`."""

    def __init__(self, path: Path, reward: RubricReward | None = None) -> None:
        self.path = path
        self.reward = reward
        self.clock = Clock()
        self.started = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the step's clock."""
        self.clock.parts.clear()
        self.started = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Print and keep what the step logged."""
        if self.reward is None or "reward" not in (logs or {}):
            return
        total = time.perf_counter() - self.started
        judged = self.reward.last_metrics
        parts = {
            "generate": self.clock.parts["generate"],
            "verify": judged["verifier_seconds"],
            "weigh": judged["weigher_seconds"],
        }
        parts["update"] = max(0.0, total - sum(parts.values()))
        rates = pass_rates(self.reward.last_scores)
        numbers = {name: value for name, value in logs.items() if isinstance(value, int | float)}
        record = {**numbers, "step": state.global_step, "length": logs.get("completions/mean_length"), "rates": rates}
        jsonl.append(self.path, [{**record, "seconds": parts | {"total": total}}])
        console.print(
            f"step {state.global_step:>2}/{state.max_steps}  reward [bold]{judged['mean']:.3f}[/]  "
            + "  ".join(f"{one} {rate:.0%}" for one, rate in rates.items())
            + f"  vetoed {judged['vetoed_share']:.0%} capped {judged['capped_share']:.0%} "
            + f"unknown {judged['unknown_share']:.0%}  [dim]"
            + " ".join(f"{part} {seconds:.1f}s" for part, seconds in parts.items())
            + "[/]",
            soft_wrap=True,
        )


def pass_rates(scores: Sequence[Score]) -> dict[str, float]:
    """Return the share of known verdicts that are met, by criterion id."""
    met: dict[str, list[bool]] = defaultdict(list)
    for score in scores:
        for one, verdict in score.verdicts.items():
            if verdict.met is not None:
                met[one].append(verdict.met)
    return {one: float(np.mean(values)) for one, values in sorted(met.items())}


def answers(trainer: Any, rows: Sequence[Mapping[str, Any]], samples: int, seed: int) -> list[str]:
    """Return `samples` answers of the policy to each row's prompt, the rows' order kept."""
    tokenizer, model = trainer.processing_class, trainer.model
    prompts = [row["prompt"] for row in rows for _ in range(samples)]
    transformers.set_seed(seed)
    inputs = tokenizer.apply_chat_template(
        prompts, add_generation_prompt=True, padding=True, padding_side="left", return_tensors="pt", return_dict=True
    ).to(model.device)
    training = model.training
    model.eval()
    with torch.inference_mode():
        output = model.generate(
            **inputs,
            max_new_tokens=trainer.args.max_completion_length,
            do_sample=True,
            temperature=trainer.args.temperature,
            top_k=0,
            top_p=1.0,
        )
    model.train(training)
    return tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def heldout(
    trainer: Any, reward: RubricReward, rows: Sequence[Mapping[str, Any]], samples: int, phase: str
) -> tuple[list[float], dict[str, float]]:
    """Return the mean score of each held-out prompt, and the pass rate of each criterion."""
    texts = answers(trainer, rows, samples, seed=trainer.args.seed)
    repeated = [row for row in rows for _ in range(samples)]
    scores = reward.score(
        [row["prompt"] for row in repeated],
        texts,
        [Rubric.parse(row["rubric"]) for row in repeated],
        tags={"phase": phase, "step": trainer.state.global_step},
    )
    means = []
    for start in range(0, len(scores), samples):
        known = [score.value for score in scores[start : start + samples] if score.value is not None]
        means.append(float(np.mean(known)) if known else float("nan"))
    return means, pass_rates(scores)


def compare(before: Sequence[float], after: Sequence[float], seed: int) -> tuple[float, tuple[float, float]]:
    """Return the mean paired difference over prompts and its bootstrap confidence interval (BCa)."""
    pairs = np.asarray([(b, a) for b, a in zip(before, after, strict=True) if not np.isnan(a - b)])
    if len(pairs) < 2:
        raise InvalidInput(f"{len(pairs)} held-out prompts could be scored both times; a comparison needs two")
    difference = pairs[:, 1] - pairs[:, 0]
    if np.ptp(difference) == 0:
        return float(difference[0]), (float(difference[0]), float(difference[0]))
    interval = bootstrap(
        (difference,), np.mean, n_resamples=9999, confidence_level=CONFIDENCE, rng=np.random.default_rng(seed)
    ).confidence_interval
    return float(difference.mean()), (float(interval.low), float(interval.high))


def data(arguments: DemoArguments, run: Path) -> list[dict[str, Any]]:
    """Write the training data set of the prompts file; return its held-out rows."""
    rows = [(f"{arguments.prompts}, line {n}", row) for n, row in jsonl.read(Path(arguments.prompts))]
    split: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for where, row in rows:
        split[row.get("split", "train") if isinstance(row, dict) else "train"].append((where, row))
    if not split["train"] or not split["heldout"]:
        raise InvalidInput(f"{arguments.prompts}: expected lines with split train and lines with split heldout")
    Path(arguments.dataset).parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in prepare(split["train"], system=arguments.system))
    Path(arguments.dataset).write_text(lines, encoding="ascii")
    console.print(f"{len(split['train'])} training prompts, {len(split['heldout'])} held out")
    return prepare(split["heldout"], system=arguments.system)


def main() -> None:
    """Run the demo."""
    started = time.perf_counter()
    transformers.utils.logging.disable_progress_bar()
    arguments, config, model = TrlParser((DemoArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
    run = Path(config.output_dir)
    if run.is_dir() and (run / "traces.jsonl").exists():
        shutil.rmtree(run)  # a trace file holds one run
    run.mkdir(parents=True, exist_ok=True)
    rows = data(arguments, run)
    clock = Clock()
    progress = Progress(run / "metrics.jsonl")
    trainer, reward = clock.time("load policy", build_trainer)(arguments, config, model, [progress])
    trainer.remove_callback(PrinterCallback)
    progress.reward = reward
    trainer.model.generate = progress.clock.time("generate", trainer.model.generate)
    try:
        console.print("starting the verifier and scoring held-out answers before training")
        before, rates_before = clock.time("held-out before", heldout)(
            trainer, reward, rows, arguments.heldout_samples, "before"
        )
        console.print(f"held-out reward before: {np.nanmean(before):.3f}")
        clock.time("training", trainer.train)()
        after, rates_after = clock.time("held-out after", heldout)(
            trainer, reward, rows, arguments.heldout_samples, "after"
        )
    finally:
        reward.close()
    difference, interval = compare(before, after, config.seed)
    summary = {
        "model": str(model.model_name_or_path),
        "verifier": reward.verifier.engine.name,
        "seed": config.seed,
        "steps": trainer.state.global_step,
        "before": {"mean": float(np.nanmean(before)), "n": len(rows) * arguments.heldout_samples},
        "after": {"mean": float(np.nanmean(after)), "n": len(rows) * arguments.heldout_samples},
        "difference": difference,
        "interval": list(interval),
        "confidence": CONFIDENCE,
        "criteria": {one: {"before": rates_before[one], "after": rates_after.get(one)} for one in rates_before},
        "seconds": dict(clock.parts) | {"total": time.perf_counter() - started},
    }
    (run / "summary.json").write_text(json.dumps(summary, indent=1), encoding="ascii")
    report = write_report(run)
    console.print(
        f"held-out reward {summary['before']['mean']:.3f} -> [bold]{summary['after']['mean']:.3f}[/]: "
        f"{difference:+.3f}, {CONFIDENCE:.0%} interval [{interval[0]:+.3f}, {interval[1]:+.3f}] "
        f"over {len(rows)} prompts, {arguments.heldout_samples} answers each",
    )
    for one, rate in summary["criteria"].items():
        console.print(f"  {one:<12} {rate['before']:.0%} -> {rate['after']:.0%}")
    console.print(f"{summary['seconds']['total']:.0f} s in all; report: {report}")


if __name__ == "__main__":
    try:
        main()
    except RewardPluginError as error:
        print(f"train/demo.py: {error}", file=sys.stderr)
        raise SystemExit(2) from None
