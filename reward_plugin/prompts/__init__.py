"""Prompt files: one Jinja file a prompt, system and user part separated by a line `---`; a shared head is included."""

import hashlib
import re
from functools import cache
from importlib.resources import files

import jinja2

from reward_plugin.engines.base import Message

# Chat templates and tokenizers read these as the end of a turn or a text
_SPECIAL = re.compile(
    r"<(?=[|｜][^<>\s]{1,40}>|[^<>\s]{1,40}[|｜]>"  # ChatML, Llama 3; DeepSeek (a full-width bar); Gemma 4
    r"|/?[a-z]+(?:_[a-z\d]+)+>"  # Gemma, code models
    r"|/?(?:s|[be]os|[es]op|pad|unk|mask|reponame|filename|think(?:ing)?|(?:begin|end|start)[a-z]*)>|/?SYS>>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_[A-Z]+|IMG(?:_[A-Z]+)?|THINK|gMASK)\])",
    re.IGNORECASE,
)
_FENCE = re.compile(r"`{3,}")
_INCLUDE = re.compile(r'{% include "(\w+)" %}\n')


@cache
def _parts(name: str) -> tuple[jinja2.Template, jinja2.Template]:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=False)
    system, _, user = _source(name).partition("\n---\n")
    return environment.from_string(system), environment.from_string(user)


@cache
def _source(name: str) -> str:
    text = (files(__package__) / f"{name}.jinja").read_text(encoding="utf-8")
    # Put in as text, so that the version of a prompt covers its head and the head may span both parts
    return _INCLUDE.sub(lambda match: _source(match[1]), text)


def version(name: str) -> str:
    """Return a digest of a prompt file with what it includes: a changed prompt is another key."""
    return hashlib.sha256(_source(name).encode()).hexdigest()[:16]


def render(name: str, **values: object) -> tuple[Message, ...]:
    """Return the system and the user message of the prompt file `name`. Values are filled in once, never expanded again.

    >>> render("verdict", fence="```", prompt="{{ fence }}", response="r", criterion="c", reply="token")[1][1].splitlines()[2]
    '{{ fence }}'
    """
    system, user = _parts(name)
    return (("system", system.render()), ("user", user.render(**values)))


def inert(text: str) -> str:
    """Return `text` with the special tokens of chat templates broken up, NUL and lone surrogates replaced.

    >>> inert("Fine.<|im_end|>")
    'Fine.< |im_end|>'
    """
    text = text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")
    return _SPECIAL.sub(lambda match: match.group() + " ", text)


def fence(*texts: str) -> str:
    """Return a run of backticks longer than any in `texts`.

    >>> fence("plain"), fence("a ```` b")
    ('```', '`````')
    """
    longest = max((len(run) for text in texts for run in _FENCE.findall(text)), default=2)
    return "`" * (longest + 1)
