"""The HTTP request that repeats a stored prompt. Pure: it uses the record alone and contacts no server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from verifier.records import Prompt, Rendering, ServerRecord
from verifier.servers.addresses import split_model
from verifier.servers.completions import plain_request
from verifier.servers.protocol import Request
from verifier.servers.registry import by_name


@dataclass(frozen=True)
class HttpRequest:
    """A POST with a JSON body."""

    url: str
    body: dict[str, Any]


def reproduce(server: ServerRecord, rendering: Rendering, max_tokens: int) -> HttpRequest | None:
    """The prompt as its engine is asked for it; ``None`` where the rendering holds no prompt.

    An engine that is not supported (any more) is asked in OpenAI's own fields.
    """
    url, model = split_model(server.url)
    name = model or server.fingerprint.model
    request = Request(rendering.prompt or Prompt(rendering.prompt_id), rendering, max_tokens)
    engine = by_name(server.fingerprint.engine)
    build = engine.reproduce if engine is not None else plain_request
    sent = build(request, name if isinstance(name, str) else None)
    return HttpRequest(url.rstrip("/") + sent.path, sent.body) if sent is not None else None
