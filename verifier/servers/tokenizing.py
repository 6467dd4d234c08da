"""Text to ids and back through the server's own tokenizer, as SGLang and vLLM offer it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType, structs

from verifier.compare.divergence import common_prefix
from verifier.errors import ServerError
from verifier.records import Message, Parameters, Prompt, Rendering
from verifier.servers import fields
from verifier.servers.http import Http
from verifier.servers.parameters import bias_of, refuse_tools, with_tools

_BROKEN = "status-500"
"""What SGLang's `/tokenize` answers where the tokenizer names no longest text, as Gemma's does not (seen on 0.5.17)."""
_NOT_OFFERED = {"status-404", "status-405", "status-501", _BROKEN}
_FIELD_MISSING = re.compile(r"required|missing", re.IGNORECASE)


def conversation(messages: tuple[Message, ...], parameters: Parameters) -> dict[str, Any]:
    """The fields of a chat request that decide how the prompt is rendered."""
    body: dict[str, Any] = {"messages": [msgspec.to_builtins(message) for message in messages]}
    if parameters.tools:
        body["tools"] = parameters.tools
    if parameters.chat_template_kwargs:
        body["chat_template_kwargs"] = parameters.chat_template_kwargs
    return body


def once(ids: tuple[int, ...], added: tuple[int, ...]) -> tuple[int, ...]:
    """Ids that begin with ``added`` once, where they begin with it twice: a text may carry its own BOS already."""
    while added and ids[: 2 * len(added)] == added * 2:
        ids = ids[len(added) :]
    return ids


Encode = Callable[[str], Awaitable["tuple[int, ...] | None"]]


class Texts:
    """The tokenizer of one server, behind ``/tokenize`` and ``/detokenize``. Both engines pass over unknown fields.

    Args:
        encode: another way to the ids of a text, specials before it, for when ``/tokenize`` is broken; it may give
            ``None`` for a text that is too long for it.
    """

    def __init__(self, http: Http, encode: Encode | None = None) -> None:
        self.http = http
        self.model: str | None = None
        self._encode = encode
        self._broken: ServerError | None = None
        self._added: tuple[int, ...] | None = None

    async def render(self, prompt: Prompt) -> Rendering:
        """Ids of a prompt; its messages or text where this version of the server cannot give ids.

        Raises:
            ServerError: ``no-template`` for a prompt of messages only, when the model has no chat template;
                ``parameter-refused`` for a bias on a text that is not one token.
        """
        return structs.replace(await self._rendered(prompt), bias=await bias_of(prompt, self._bare))

    async def _bare(self, text: str) -> tuple[int, ...] | None:
        """Ids of a text and nothing around it; ``None`` where this version of the server cannot give them."""
        try:
            return await self._encoded(text, special=False)
        except ServerError as error:
            if error.down or not _not_offered(error):
                raise
            return None

    async def _rendered(self, prompt: Prompt) -> Rendering:
        ids = None
        if prompt.messages:
            try:
                ids = await with_tools(prompt, partial(self.template, prompt.messages), self.http.url)
            except ServerError as error:
                if error.down or not (_refused(error) or _not_offered(error)):
                    raise
                if prompt.text is None:
                    if not _not_offered(error):
                        raise _no_template(self.http.url, error) from None
                    refuse_tools(prompt, self.http.url)
                    return Rendering(prompt.id, prompt.digest, messages=prompt.messages)
        if ids is None:
            text = prompt.text or ""
            try:
                ids = await self.tokenize(text)
            except ServerError as error:
                if error.down or not _not_offered(error):
                    raise
                return Rendering(prompt.id, prompt.digest, text=text)
        return Rendering(prompt.id, prompt.digest, ids=ids)

    async def template(self, messages: tuple[Message, ...], parameters: Parameters) -> tuple[int, ...]:
        """Ids of a conversation, the model's turn opened."""
        body = conversation(messages, parameters) | {"add_generation_prompt": True, "add_special_tokens": False}
        return once(await self._ids(body), await self._specials())

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """Ids of a raw text, with what the tokenizer puts before it."""
        added = await self._specials()
        return once(await self._encoded(text, special=True), added)

    async def _specials(self) -> tuple[int, ...]:
        """What the tokenizer puts before a text: BOS as a rule."""
        if self._added is None:
            full = await self._encoded("a", special=True)
            if self._broken is None:
                bare = await self._encoded("a", special=False)
                self._added = full[: len(full) - len(bare)] if full[len(full) - len(bare) :] == bare else ()
            else:
                other = await self._encoded("b", special=True)
                common = common_prefix(full, other)
                self._added = full[:common] if common < min(len(full), len(other)) else ()
        return self._added

    async def _encoded(self, text: str, *, special: bool) -> tuple[int, ...]:
        """Ids of a text, with or without what the tokenizer puts before it."""
        try:
            return await self._ids({"prompt": text, "add_special_tokens": special})
        except ServerError as error:
            ids = await self._encode(text) if error is self._broken and self._encode is not None else None
            if ids is None:
                raise
        return ids if special else ids[len(await self._specials()) :]

    async def _ids(self, body: dict[str, Any]) -> tuple[int, ...]:
        if self._broken is not None:
            raise self._broken
        if self.model is not None:
            body = {"model": self.model} | body
        try:
            reply = await self.http.ask("/tokenize", body)
        except ServerError as error:
            if error.kind == _BROKEN:
                # It is so for every text: nothing is asked again.
                self._broken = error
            raise
        ids = fields.integers(fields.mapping(reply).get("tokens"))
        if ids is None:
            raise ServerError("no-token-ids", f"{self.http.url}/tokenize returned no token ids.", "Update the server.")
        return ids

    async def template_digest(self) -> str | None | UnsetType:
        """A digest of how a fixed conversation is rendered; ``None`` without a template, `UNSET` if it is not told."""
        try:
            return fields.digest(await self.template((Message("user", "a"),), Parameters()))
        except ServerError as error:
            if error.down:
                raise
            return None if _refused(error) and not _not_offered(error) else UNSET

    async def decode(self, ids: list[int]) -> str | None:
        """The text of ids, or ``None`` when the server does not take them."""
        body: dict[str, Any] = {"tokens": ids, "skip_special_tokens": False}
        if self.model is not None:
            body["model"] = self.model
        try:
            reply = fields.mapping(await self.http.ask("/detokenize", body))
        except ServerError as error:
            if error.down:
                raise
            return None
        found = reply.get("text")
        return fields.text(found if found is not None else reply.get("prompt"))

    async def decode_all(self, ids: tuple[int, ...]) -> str:
        """The text of ids; empty when the server cannot decode."""
        return await self.decode(list(ids)) or ""

    async def pieces(self, ids: tuple[int, ...]) -> dict[int, str]:
        """The text of each token by itself; empty where the server cannot decode."""
        pieces: dict[int, str] = {}
        for token in dict.fromkeys(ids):
            text = await self.decode([token])
            if text is None:
                return {}
            pieces[token] = text
        return pieces


def _refused(error: ServerError) -> bool:
    return re.fullmatch(r"status-(4(?!01|03|29)\d\d|501)", error.kind) is not None


def _not_offered(error: ServerError) -> bool:
    """Whether the endpoint, or the use of it, is newer than this server, or broken there."""
    return error.kind in _NOT_OFFERED or (_refused(error) and _FIELD_MISSING.search(error.message) is not None)


def _no_template(url: str, error: ServerError) -> ServerError:
    return ServerError(
        "no-template",
        f"{url} cannot render messages, and this prompt is messages only: {error.message}",
        "Give the prompt as raw text in its `prompt` field too, or use a model with a chat template.",
    )
