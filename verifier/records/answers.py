"""Parts of an answer that servers report beside its text and token ids, as they are stored."""

from __future__ import annotations

from msgspec import Struct


class FunctionCall(Struct, frozen=True, array_like=True):
    """A tool call that the server parsed out of an answer. The call's id is left out because servers make it up.

    ``arguments`` is the string that the server sent, which need not be valid JSON.
    """

    name: str
    arguments: str = ""

    @property
    def spelled(self) -> str:
        """The call as one would write it: ``name(arguments)``."""
        return f"{self.name}({self.arguments})"


class TextToken(Struct, frozen=True, array_like=True):
    """One token of an answer whose server names tokens by their text, with the logprobs (nats) at its position.

    ``top`` are the most likely tokens, by text, in the server's order. A token that is only a part of a character is
    written ``bytes:\\xe6\\xb5``, or holds U+FFFD where the server does not say which bytes it is.
    """

    text: str
    logprob: float | None = None
    top: tuple[tuple[str, float], ...] = ()
