"""Evaluation graphs: a rubric's composition as a typed program that is checked before it runs."""

from reward_plugin.graph.compiler import compile_rubric
from reward_plugin.graph.execution import Result, replay, run
from reward_plugin.graph.program import Node, Program

__all__ = ["Node", "Program", "Result", "compile_rubric", "replay", "run"]
