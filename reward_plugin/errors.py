"""Every exception that the package raises on purpose.

RewardPluginError
├── InvalidInput (ValueError)      what the caller passed cannot be used; the message names the item and the way out
│   ├── InvalidRubric              a rubric, criterion, gate or check
│   ├── InvalidProgram             an evaluation graph; lists every fault, not the first
│   └── InvalidText (TypeError)    a prompt or completion that is not text or messages
└── EngineError                    a model could not be started or spoken to
    └── VerifierUnavailable        call after call in which nothing could be judged
"""


class RewardPluginError(Exception):
    """Root of the package's own exceptions."""


class InvalidInput(RewardPluginError, ValueError):
    """What the caller passed cannot be used."""


class InvalidRubric(InvalidInput):
    """A rubric, criterion, gate or check is malformed."""


class InvalidProgram(InvalidInput):
    """An evaluation graph is malformed; `faults` lists every fault found."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("invalid program: " + "; ".join(faults))

    def __reduce__(self) -> tuple[type["InvalidProgram"], tuple[list[str]]]:
        return InvalidProgram, (list(self.faults),)


class InvalidText(InvalidInput, TypeError):
    """A prompt or completion is neither text nor messages."""


class EngineError(RewardPluginError):
    """A model could not be started or spoken to."""


class VerifierUnavailable(EngineError):
    """Nothing could be judged in several calls in a row."""
