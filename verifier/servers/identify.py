"""Which engine is behind an address."""

from __future__ import annotations

from verifier.errors import ServerError
from verifier.servers import fields
from verifier.servers.http import Http
from verifier.servers.models import asked_model
from verifier.servers.protocol import Engine, Server
from verifier.servers.registry import by_owner, in_order

_TELLING = ("status-401", "status-403", "status-3", "html")


async def connect(http: Http) -> Server:
    """The server at an address, of the engine that it turns out to be. Generates nothing.

    Usually one request is enough: the owner of the model identifies the engine. Where it does not, each engine is
    tested by endpoints that only it has.

    Raises:
        ServerError: ``unknown-server`` when nothing fits, with what was tried; ``no-such-model`` when it does not
            serve the model that the address names; ``status-401`` or the like when the server refuses access.
    """
    refusal: ServerError | None = None
    try:
        models = fields.mapping(await http.get("/v1/models"))
    except ServerError as error:
        if error.down or error.kind in {"timeout", "reset"}:
            raise
        refusal, models = error, {}
    entry = asked_model(models, http)
    engine = by_owner(entry.get("owned_by")) or await _recognised(http)
    if engine is not None and engine.one_model and http.model is not None and entry != fields.first(models.get("data")):
        raise ServerError(
            "no-such-model",
            f"{http.url} can only be asked for its first model, not for {http.model!r}.",
            f"Start a server with that model alone, and write {http.url}.",
        )
    if engine is not None:
        return engine(http)
    if refusal and refusal.kind.startswith(_TELLING):
        raise refusal
    why = f" ({refusal.message})" if refusal else ""
    raise ServerError(
        "unknown-server",
        f"{http.url} answers, but it is not a known kind of server: /server_info and /get_server_info are not "
        f"SGLang's, /props is not llama.cpp's, /v1/models names no model{why}, and neither /v1/completions nor "
        "/v1/chat/completions is there.",
        "Is this the port of the API, and not of a web page or of metrics?",
    )


async def _recognised(http: Http) -> type[Engine] | None:
    """The first engine whose own endpoints are there; ``None`` where none fits."""
    for engine in in_order():
        if await engine.recognise(http):
            return engine
    return None
