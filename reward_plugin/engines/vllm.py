"""vLLM in this process: one engine a model, started at the first request, prefixes cached."""

import os
from collections.abc import Sequence
from typing import Any

from reward_plugin.engines.base import Reply, Request, Usage, checked
from reward_plugin.engines.models import model_identity, model_source
from reward_plugin.errors import EngineError

_STARTED: dict[str, Any] = {}  # vLLM cannot hold the same model twice in a process; a copy of a reward shares it


def engine_arguments(*, gpu_memory_utilization: float = 0.3, max_model_len: int = 4096) -> dict[str, Any]:
    """Return the arguments of `vllm.LLM` and of its server that suit short verdicts over shared prefixes.

    `gpu_memory_utilization` leaves most of a GPU to the trainer beside it.
    """
    arguments: dict[str, Any] = {"enable_prefix_caching": True, "max_model_len": max_model_len, "max_logprobs": 20}
    if not gpu_available():
        # 32 is the smallest block of vLLM's CPU attention: shorter shared prefixes are reached than with its default of 128
        arguments |= {"dtype": cpu_dtype(), "enforce_eager": True, "block_size": 32}
    else:
        arguments |= {"dtype": "auto", "gpu_memory_utilization": gpu_memory_utilization}
    return arguments


def gpu_available() -> bool:
    """Return whether torch sees a GPU."""
    import torch

    return bool(torch.cuda.is_available())


def cpu_dtype() -> str:
    """Return "bfloat16" where the CPU computes in it, else "float32": emulated bfloat16 is several times slower."""
    import torch

    return "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"


def cpu_environment() -> dict[str, str]:
    """Return the environment that vLLM on the CPU wants, where the user has not set it: cache size and all cores."""
    wanted = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"}
    return {name: value for name, value in wanted.items() if name not in os.environ}


class VllmEngine:
    """A model in this process. `model` is a local folder or a hub name; extra arguments go to `vllm.LLM`.

    Raises `EngineError` at first use when vLLM is not installed or does not start.
    """

    def __init__(self, model: str, **arguments: Any) -> None:
        self.model = model
        self.arguments = arguments
        self.name = f"vllm:{model}"

    @property
    def identity(self) -> str:
        """Changes when the model does."""
        return model_identity(self.model)

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, all of them submitted together and in order."""
        if not requests:
            return []
        llm = self._start()
        prompts, refused = self._prompts(llm, requests)
        asked = [row for row in range(len(requests)) if row not in refused]
        outputs = llm.generate(
            [prompts[row] for row in asked], [_sampling(requests[row]) for row in asked], use_tqdm=False
        )
        replies = dict(refused)
        replies |= {row: _reply(output, requests[row]) for row, output in zip(asked, outputs, strict=True)}
        return checked([replies[row] for row in sorted(replies)], requests, self.name)

    def close(self) -> None:
        """Shut the engine down."""
        llm = _STARTED.pop(self.model, None)
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()

    def _start(self) -> Any:
        if self.model in _STARTED:
            return _STARTED[self.model]
        source = model_source(self.model)
        try:
            import torch

            os.environ.update(cpu_environment())
            from vllm import LLM
        except ImportError as error:
            raise EngineError(
                f"engine {self.name}: vLLM cannot be imported ({error}); install reward-plugin[vllm] for a GPU or "
                f"reward-plugin[cpu], or use hf:{self.model}"
            ) from error
        threads = torch.get_num_threads()
        try:
            llm = LLM(source, **(engine_arguments() | {"use_tqdm_on_load": False} | self.arguments))
        except Exception as error:  # vLLM raises whatever its parts raise
            raise EngineError(
                f"engine {self.name}: vLLM did not start: {error}; its log is above (a GPU that is full: lower "
                "gpu_memory_utilization, or give the verifier a server of its own)"
            ) from error
        finally:
            torch.set_num_threads(threads)  # vLLM sets 1 for the whole process; a trainer here needs its own
        _STARTED[self.model] = llm
        return llm

    def _prompts(self, llm: Any, requests: Sequence[Request]) -> tuple[list[dict[str, Any]], dict[int, Reply]]:
        tokenizer = llm.get_tokenizer()
        limit = llm.llm_engine.model_config.max_model_len
        prompts, refused = [], {}
        for row, request in enumerate(requests):
            messages = [{"role": role, "content": content} for role, content in request.messages]
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
            ids = tokenizer.encode(text, add_special_tokens=False)
            if len(ids) + request.max_tokens > limit:
                refused[row] = Reply(error="overlong")
            prompts.append({"prompt_token_ids": ids})
        return prompts, refused


def _sampling(request: Request) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    structured = None
    if request.schema is not None:
        structured = StructuredOutputsParams(json=dict(request.schema), disable_any_whitespace=True)
    return SamplingParams(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        seed=request.seed,
        logprobs=request.top_logprobs or None,
        structured_outputs=structured,
    )


def _reply(output: Any, request: Request) -> Reply:
    generated = output.outputs[0]
    logprobs: dict[str, float] = {}
    if request.top_logprobs and generated.logprobs:
        for entry in generated.logprobs[0].values():
            # Two ids can share a text; the likelier one comes first
            logprobs.setdefault(entry.decoded_token, entry.logprob)
    return Reply(
        text=generated.text,
        logprobs=logprobs,
        finish_reason=generated.finish_reason or "stop",
        usage=Usage(len(output.prompt_token_ids), output.num_cached_tokens or 0, len(generated.token_ids)),
    )
