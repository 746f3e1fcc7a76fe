"""Plain transformers, for platforms without vLLM: the same contract, slower (no prefix cache, no JSON schema)."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from reward_plugin.engines.base import Reply, Request, Usage
from reward_plugin.engines.models import model_identity, model_source
from reward_plugin.errors import EngineError

_BATCH = 16
_STARTED: dict[str, tuple[Any, Any]] = {}


class TransformersEngine:
    """A model through `AutoModelForCausalLM`. `model` is a local folder or a hub name.

    A JSON schema is not enforced: the reply is parsed as it comes. Raises `EngineError` at first use when transformers is
    missing or the model does not load.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self.name = f"hf:{model}"

    @property
    def identity(self) -> str:
        """Changes when the model does."""
        return model_identity(self.model)

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request; alike ones share a batch, longest prompts first."""
        if not requests:
            return []
        model, tokenizer = self._start()
        texts = []
        for request in requests:
            messages = [{"role": role, "content": content} for role, content in request.messages]
            texts.append(
                tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
                )
            )
        kinds = [(one.temperature, one.seed or 0, one.max_tokens) for one in requests]
        order = sorted(range(len(requests)), key=lambda row: (kinds[row], -len(texts[row])))
        replies: list[Reply | None] = [None] * len(requests)
        for rows in _batches(order, kinds):
            for row, reply in zip(
                rows, _generate(model, tokenizer, [texts[r] for r in rows], [requests[r] for r in rows]), strict=True
            ):
                replies[row] = reply
        return [reply for reply in replies if reply is not None]

    def close(self) -> None:
        """Drop the model."""
        _STARTED.pop(self.model, None)

    def _start(self) -> tuple[Any, Any]:
        if self.model not in _STARTED:
            source = model_source(self.model)
            try:
                import torch
                from transformers import AutoModelForCausalLM, AutoTokenizer
            except ImportError as error:
                raise EngineError(
                    f"engine {self.name}: transformers cannot be imported ({error}); install reward-plugin[train]"
                ) from error
            try:
                tokenizer: Any = AutoTokenizer.from_pretrained(source, padding_side="left")
                model: Any = AutoModelForCausalLM.from_pretrained(
                    source, dtype="auto" if torch.cuda.is_available() else torch.float32
                )
            except (OSError, ValueError) as error:
                raise EngineError(f"engine {self.name}: the model does not load: {error}") from error
            if tokenizer.pad_token is None:
                tokenizer.pad_token = tokenizer.eos_token
            _STARTED[self.model] = (model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer)
        return _STARTED[self.model]


def _batches(order: Sequence[int], kinds: Sequence[tuple[float, int, int]]) -> Iterator[list[int]]:
    # Those of one batch are drawn together, so temperature and seed are one for all of them
    for _, rows in groupby(order, key=lambda row: kinds[row][:2]):
        alike = list(rows)
        for start in range(0, len(alike), _BATCH):
            yield alike[start : start + _BATCH]


def _generate(model: Any, tokenizer: Any, texts: list[str], requests: list[Request]) -> list[Reply]:
    import torch

    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
    limit = getattr(model.config, "max_position_embeddings", None)
    longest = max(request.max_tokens for request in requests)
    width = inputs["input_ids"].shape[1]
    if limit is not None and width + longest > limit:
        if len(requests) == 1:
            return [Reply(error="overlong")]
        return [reply for t, r in zip(texts, requests, strict=True) for reply in _generate(model, tokenizer, [t], [r])]
    sampled, seed = requests[0].temperature > 0, requests[0].seed
    with torch.inference_mode(), torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        output = model.generate(
            **inputs,
            max_new_tokens=longest,
            do_sample=sampled,
            temperature=requests[0].temperature if sampled else None,
            top_p=None,
            top_k=None,
            return_dict_in_generate=True,
            output_logits=True,
            pad_token_id=tokenizer.pad_token_id,
        )
    first = torch.log_softmax(output.logits[0].float(), dim=-1)
    replies = []
    for row, request in enumerate(requests):
        new = output.sequences[row, width:][: request.max_tokens].tolist()
        ended = tokenizer.eos_token_id in new
        ids = new[: new.index(tokenizer.eos_token_id)] if ended else new
        logprobs: dict[str, float] = {}
        if request.top_logprobs:
            best = first[row].topk(request.top_logprobs)
            for token, logprob in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                logprobs.setdefault(tokenizer.decode([token]), logprob)
        prompt_tokens = int(inputs["attention_mask"][row].sum())
        replies.append(
            Reply(
                text=tokenizer.decode(ids, skip_special_tokens=True),
                logprobs=logprobs,
                finish_reason="stop" if ended else "length",
                usage=Usage(prompt_tokens, 0, len(ids)),
            )
        )
    return replies
