"""GRPO with a rubric reward: TRL's own parser and trainer, any model and data set that TRL takes.

    python train/grpo.py --config configs/demo/grpo.yaml
    python train/grpo.py --config configs/demo/grpo.yaml --learning_rate 1e-5     (arguments win over the file)

The data set is a JSONL file, a folder that `save_to_disk` wrote, or a hub name, with a `prompt` column and a rubric
column (train/prepare.py makes one). What the reward does is one YAML file: the arguments of RubricReward.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset, load_from_disk
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser, get_peft_config, get_quantization_config

from reward_plugin import RubricReward
from reward_plugin.errors import InvalidInput, RewardPluginError


@dataclass
class RubricArguments:
    """What this script adds to TRL's own arguments."""

    dataset: str = field(metadata={"help": "JSONL file, saved data set folder, or hub name."})
    reward: str = field(metadata={"help": "YAML file with the arguments of RubricReward."})
    dataset_split: str = field(default="train", metadata={"help": "Split of a hub data set or saved folder."})
    traces: str | None = field(default=None, metadata={"help": "Trace file; default: traces.jsonl in output_dir."})


def load_prompts(source: str, split: str = "train", rubric_column: str | None = "rubric") -> Dataset:
    """Return the data set of `source`, checked to have the columns that the reward needs. Raises `InvalidInput`."""
    path = Path(source)
    if path.suffix in (".jsonl", ".json"):
        if not path.is_file():
            raise InvalidInput(f"data set {source}: no such file")
        try:
            rows: Any = load_dataset("json", data_files=str(path), split="train")
        except Exception as error:  # the loader raises whatever its reader does
            raise InvalidInput(f"data set {source}: not readable as JSONL: {error.__cause__ or error}") from error
    elif path.is_dir():
        rows = load_from_disk(source)
        rows = rows[split] if isinstance(rows, dict) else rows
    else:
        rows = load_dataset(source, split=split)
    for column in ("prompt", rubric_column):
        if column is not None and column not in rows.column_names:
            raise InvalidInput(
                f"data set {source}: no column {column!r}; it has {', '.join(rows.column_names)} "
                "(python train/prepare.py adds a rubric column)"
            )
    return rows


def build_trainer(
    arguments: RubricArguments,
    config: GRPOConfig,
    model: ModelConfig,
    callbacks: Sequence[TrainerCallback] = (),
) -> tuple[GRPOTrainer, RubricReward]:
    """Return the trainer and its reward. Raises `InvalidInput` before any model is loaded."""
    traces = arguments.traces or str(Path(config.output_dir) / "traces.jsonl")
    reward = RubricReward.from_config(arguments.reward, traces=traces)
    column = None if reward.rubric is not None else reward.rubric_column
    prompts = load_prompts(arguments.dataset, arguments.dataset_split, column)
    config.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
    } | (config.model_init_kwargs or {})
    trainer = GRPOTrainer(
        model=_existing(model.model_name_or_path),
        reward_funcs=reward,
        args=config,
        train_dataset=prompts,
        peft_config=get_peft_config(model),
        quantization_config=get_quantization_config(model),
        callbacks=list(callbacks),
    )
    return trainer, reward


def parse(argv: list[str] | None = None) -> tuple[RubricArguments, GRPOConfig, ModelConfig]:
    """Return the arguments of the command line and of the YAML file that `--config` names."""
    parser = TrlParser((RubricArguments, GRPOConfig, ModelConfig))
    arguments, config, model = parser.parse_args_and_config(args=argv)
    return arguments, config, model


def _existing(model: str | None) -> str:
    from reward_plugin.engines.models import model_source

    if model is None:
        raise InvalidInput("no model: pass --model_name_or_path FOLDER_OR_HUB_NAME")
    return model_source(model)


def main() -> None:
    """Train, then save the model to `output_dir`."""
    arguments, config, model = parse()
    trainer, reward = build_trainer(arguments, config, model)
    try:
        trainer.train(resume_from_checkpoint=config.resume_from_checkpoint)
        trainer.save_model(config.output_dir)
    finally:
        reward.close()


if __name__ == "__main__":
    try:
        main()
    except RewardPluginError as error:
        print(f"train/grpo.py: {error}", file=sys.stderr)
        raise SystemExit(2) from None
