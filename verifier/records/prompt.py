"""What is asked: a prompt with its messages and parameters, as prompt sets and files hold it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
from msgspec import Struct, field


class Message(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One turn of a chat prompt; calls of tools and their results are in OpenAI's form."""

    role: str
    content: str
    tool_calls: tuple[dict[str, Any], ...] = ()
    tool_call_id: str = ""
    name: str = ""

    @property
    def whole(self) -> str:
        """The content, and the calls below it as JSON."""
        calls = (json.dumps(call, ensure_ascii=False) for call in self.tool_calls)
        return "\n".join(filter(None, (self.content, *calls)))


class Parameters(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Request parameters that both servers get alike; temperature 0 is not among them because it is always sent.

    ``logit_bias`` adds to the logits of tokens by id (decimal, as in OpenAI's API), ``text_bias`` by text, which must
    be one token of the reference's tokenizer: a prompt set knows no ids. ``grammar`` is in GBNF. ``thinking_budget`` is
    the most tokens of reasoning. ``tools`` are the functions that a chat template shows to the model, in OpenAI's form.
    """

    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    logit_bias: dict[str, float] = field(default_factory=dict)
    text_bias: dict[str, float] = field(default_factory=dict)
    min_tokens: int = 0
    json_schema: dict[str, Any] | None = None
    grammar: str = ""
    thinking_budget: int | None = None
    tools: tuple[dict[str, Any], ...] = ()


class Prompt(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One request of a prompt set.

    ``messages`` are asked through the server's chat template, ``text`` (``"prompt"`` in the file) is sent raw. A prompt
    may carry both: the messages are used where the server has a template of its own, the text elsewhere.
    """

    id: str
    category: str = "uncategorized"
    language: str = ""
    text: str | None = field(default=None, name="prompt")
    messages: tuple[Message, ...] | None = None
    max_tokens: int | None = None
    tags: tuple[str, ...] = ()
    parameters: Parameters = Parameters()

    @property
    def digest(self) -> str:
        """16 hex digits that change with anything that could change the answer."""
        asked = (self.text, self.messages, self.max_tokens, self.parameters)
        return hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()[:16]
