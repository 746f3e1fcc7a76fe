"""A rubric as the reward: importance weights, gates and local verdicts for TRL's GRPOTrainer."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reward_plugin.engines.base import ScriptedEngine
    from reward_plugin.reward import RubricReward
    from reward_plugin.rubric import Criterion, Gate, Rubric
    from reward_plugin.scores import Score
    from reward_plugin.verdicts import Verdict

    rubric_reward: RubricReward

__version__ = "0.1.0.dev0"
__all__ = [
    "Criterion",
    "Gate",
    "Rubric",
    "RubricReward",
    "Score",
    "ScriptedEngine",
    "Verdict",
]  # not rubric_reward: a star import must not read a config

_HOME = {
    "Criterion": "reward_plugin.rubric",
    "Gate": "reward_plugin.rubric",
    "Rubric": "reward_plugin.rubric",
    "RubricReward": "reward_plugin.reward",
    "Score": "reward_plugin.scores",
    "ScriptedEngine": "reward_plugin.engines.base",
    "Verdict": "reward_plugin.verdicts",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "rubric_reward":
        # `trl grpo --reward_funcs reward_plugin.rubric_reward` imports an attribute, not a call
        value = import_module("reward_plugin.reward").RubricReward.from_environment()
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'reward_plugin' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
