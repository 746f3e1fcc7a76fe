"""Models behind one method, `complete(requests) -> replies`. The only package that imports vllm, torch, transformers."""

from collections.abc import Sequence

from reward_plugin.engines.base import Engine, Message, Reply, Request, ScriptedEngine, Usage
from reward_plugin.errors import InvalidInput

__all__ = ["Engine", "Message", "Reply", "Request", "ScriptedEngine", "Usage", "as_engine", "open_engine"]


def open_engine(name: str) -> Engine:
    """Return the engine of a name, not yet started.

    `vllm:<model>` runs vLLM in this process, `server:<model>` starts and watches a vLLM server of its own,
    `http://host:port/v1` speaks to a server that runs already, `hf:<model>` uses plain transformers. `<model>` is a
    local folder or a hub name. Raises `InvalidInput` for another name.

    >>> open_engine("vllm:Qwen/Qwen3-8B").name
    'vllm:Qwen/Qwen3-8B'
    """
    kind, _, model = name.partition(":")
    if kind == "vllm" and model:
        from reward_plugin.engines.vllm import VllmEngine

        return VllmEngine(model)
    if kind == "server" and model:
        from reward_plugin.engines.server import ServerEngine

        return ServerEngine(model)
    if kind == "hf" and model:
        from reward_plugin.engines.transformers import TransformersEngine

        return TransformersEngine(model)
    if kind in ("http", "https") and model.startswith("//"):
        from reward_plugin.engines.http import HttpEngine

        return HttpEngine(name)
    raise InvalidInput(
        f"unknown engine {name!r}; expected vllm:<model>, server:<model>, hf:<model> or http://host:port/v1"
    )


def as_engine(engine: str | Engine | None) -> Engine:
    """Return the engine of a name, an engine as it is, or for None one that says at first use that a model is needed.

    Raises `InvalidInput` for anything else.
    """
    if engine is None:
        return _NoEngine()
    if isinstance(engine, str):
        return open_engine(engine)
    if not callable(getattr(engine, "complete", None)):
        raise InvalidInput(f"an engine is a name like 'vllm:<model>', or an object with complete(); got {engine!r}")
    return engine


class _NoEngine:
    name = identity = "none"

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        judges = requests[0].meta["kind"] == "verdict"
        asks = "a verdict needs" if judges else "weights need"
        way_out = "give every criterion a check" if judges else "set weighting='uniform' or 'given'"
        raise InvalidInput(f"{asks} a model: pass verifier='vllm:<model>', or {way_out}")

    def close(self) -> None:
        pass
