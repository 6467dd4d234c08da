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
