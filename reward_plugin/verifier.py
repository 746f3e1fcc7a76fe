"""One verdict a criterion a completion: checks decided here, the rest judged in one batch over shared prefixes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from reward_plugin import prompts
from reward_plugin.engines.base import Engine, Reply, Request, checked
from reward_plugin.replies import Unusable, choice_probabilities, json_object
from reward_plugin.rubric import Criterion
from reward_plugin.verdicts import Verdict

ReplyMode = Literal["token", "json"]

_JSON_TOKENS = 96
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string", "maxLength": 200}, "met": {"type": "boolean"}},
    "required": ["reason", "met"],
    "additionalProperties": False,
}


@dataclass(slots=True)
class Tally:
    """What a batch of model calls cost: requests, tokens (prompt, from the cache, generated), seconds."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    seconds: float = 0.0

    def add(self, replies: Sequence[Reply], seconds: float) -> None:
        """Count `replies` that took `seconds`."""
        self.requests += len(replies)
        self.seconds += seconds
        for reply in replies:
            self.prompt_tokens += reply.usage.prompt_tokens
            self.cached_tokens += reply.usage.cached_tokens
            self.generated_tokens += reply.usage.generated_tokens


@dataclass(frozen=True, slots=True)
class Job:
    """A completion to judge: the prompt's text, the response's text, and the criteria."""

    prompt: str
    response: str
    criteria: tuple[Criterion, ...]


@dataclass
class Verifier:
    """Judges completions with an engine.

    `reply="token"` reads the first token's probabilities of Yes and No: one token a verdict. `"json"` asks for a reason
    and `met`; a malformed or truncated reply is asked once more, then unknown.
    """

    engine: Engine
    reply: ReplyMode = "token"
    tally: Tally = field(default_factory=Tally)

    def judge(self, jobs: Sequence[Job]) -> list[dict[str, Verdict]]:
        """Return the verdicts of each job by criterion id.

        A completion that says nothing meets nothing and avoids no pitfall. Every other verdict comes from the criterion's check, or from the
        model: all of them in one call, the same question once.
        """
        verdicts: list[dict[str, Verdict]] = []
        places: dict[tuple[str, str, str], list[tuple[int, str]]] = {}
        for row, job in enumerate(jobs):
            verdicts.append({})
            for criterion in job.criteria:
                if not job.response.strip():
                    verdicts[row][criterion.id] = Verdict.of(criterion.pitfall, by="rule", reason="empty completion")
                elif criterion.check is not None:
                    verdicts[row][criterion.id] = _checked(criterion, job.response)
                else:
                    places.setdefault((job.prompt, job.response, criterion.text), []).append((row, criterion.id))
        # Sorted by prompt, then response: what shares a prefix is submitted side by side
        questions = sorted(places)
        for question, verdict in zip(questions, self._ask(questions), strict=True):
            for row, one in places[question]:
                verdicts[row][one] = verdict
        return [{c.id: verdicts[row][c.id] for c in job.criteria} for row, job in enumerate(jobs)]

    def _ask(self, questions: Sequence[tuple[str, str, str]]) -> list[Verdict]:
        requests = [self.request(*question) for question in questions]
        verdicts = [_verdict(reply, self.reply) for reply in self._complete(requests)]
        again = [i for i, one in enumerate(verdicts) if self.reply == "json" and one.why in ("malformed", "truncated")]
        for i, reply in zip(again, self._complete([requests[i] for i in again]), strict=True):
            verdicts[i] = _verdict(reply, self.reply)
        return verdicts

    def _complete(self, requests: list[Request]) -> list[Reply]:
        if not requests:
            return []
        start = time.perf_counter()
        replies = checked(self.engine.complete(requests), requests, self.engine.name)
        self.tally.add(replies, time.perf_counter() - start)
        return replies

    def request(self, prompt: str, response: str, criterion: str) -> Request:
        """Return the request for one verdict: instructions, prompt and response first, the criterion last."""
        prompt, response = prompts.inert(prompt), prompts.inert(response)
        messages = prompts.render(
            "verdict",
            fence=prompts.fence(prompt, response),
            prompt=prompt,
            response=response,
            criterion=prompts.inert(criterion),
            reply=self.reply,
        )
        meta = {"kind": "verdict", "prompt": prompt, "response": response, "criterion": criterion}
        if self.reply == "json":
            return Request(messages, max_tokens=_JSON_TOKENS, schema=_SCHEMA, meta=meta)
        return Request(messages, max_tokens=1, top_logprobs=20, meta=meta)


def _checked(criterion: Criterion, response: str) -> Verdict:
    assert criterion.check is not None
    try:
        return Verdict.of(criterion.check.decide(response), by="check")
    except TimeoutError:
        return Verdict.unknown("pattern_timeout", by="check")


def _verdict(reply: Reply, mode: ReplyMode) -> Verdict:
    try:
        if mode == "token":
            return Verdict.of(choice_probabilities(reply, ("yes", "no"))["yes"])
        answer = json_object(reply, {"reason": str, "met": bool})
        return Verdict.of(bool(answer["met"]), reason=str(answer["reason"]))
    except Unusable as error:
        return Verdict.unknown(str(error))
