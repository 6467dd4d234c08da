"""Any server with OpenAI's `/v1/completions` or `/v1/chat/completions`: text in, text out, and little else reported."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from verifier.errors import ServerError
from verifier.records import Abilities, Finding, Fingerprint, Prompt, Rendering, TokenLogprob
from verifier.servers import fields
from verifier.servers.completions import (
    CHAT,
    COMPLETIONS,
    ask,
    chat_logprobs,
    common_sampling,
    engine_sampling,
    parameters_of,
    plain_request,
)
from verifier.servers.ending import bounded
from verifier.servers.findings import NO_PROBE, no_ids, unreported
from verifier.servers.http import Http
from verifier.servers.models import asked_model, several_models
from verifier.servers.names import model_name
from verifier.servers.parameters import bias_of, json_response, refuse_tools, require
from verifier.servers.protocol import Answer, Counters, Identity, Request, Scored, Sent
from verifier.servers.tokenizing import conversation

PLAIN_FIELDS = Finding(
    "plain-fields",
    "The server refuses sampling fields that are not OpenAI's own (top_k, min_p, repetition_penalty, ignore_eos), so "
    "defaults of its own may apply to the answers.",
    severity="warning",
)
SERVER_TEMPLATE = Finding(
    "no-prompt-ids",
    "The server takes prompts as text and messages, so whether both sides were asked the same ids cannot be seen.",
)
LACKS = dict.fromkeys(("grammar", "min_tokens", "thinking_budget"), "OpenAI's API has no such parameter")
LACKS_PLAIN = dict.fromkeys(("ignore_eos", "repetition_penalty"), "it refuses what is not in OpenAI's API")
EXTRA = ("top_k", "min_p", "repetition_penalty", "ignore_eos", "skip_special_tokens", "return_token_ids")


class OpenAI:
    """One server that is of no engine known by name."""

    engine: ClassVar[str] = "openai"
    recognition_order: ClassVar[int] = 1000
    model_owner: ClassVar[str | None] = None
    one_model: ClassVar[bool] = False

    def __init__(self, http: Http) -> None:
        self.http = http
        self._model: str | None = None
        self._asking = asyncio.Lock()
        self._extra: bool | None = None
        """Whether it takes fields that are not OpenAI's own; ``None`` until it was asked."""

    @classmethod
    async def recognise(cls, http: Http) -> bool:
        models = fields.mapping(await http.has("/v1/models"))
        if fields.mappings(models.get("data")):
            return True
        return await _takes_posts(http, COMPLETIONS) or await _takes_posts(http, CHAT)

    async def identify(self) -> Identity:
        listed = await self.http.has("/v1/models")
        model = asked_model(listed, self.http)
        self._model = fields.text(model.get("id"))
        probe = await self._probe()
        choice = fields.first(probe.get("choices"))
        name = fields.text(model.get("root")) or self._model or fields.text(probe.get("model"))
        fingerprint = Fingerprint(
            engine=self.engine,
            version=fields.known(fields.text(probe.get("system_fingerprint")) or None),
            model=fields.known(model_name(name)),
            context_length=fields.known(fields.whole(model.get("max_model_len"))),
        )
        abilities = Abilities(
            token_ids=bool(choice.get("token_ids")) if probe else None,
            prompt_ids=False,
            scoring=False,
            draft_counters=False,
            chat_template=None,
            detokenize=False,
            lacks=tuple(self._lacks()),
        )
        findings = [SERVER_TEMPLATE, *no_ids(abilities)]
        findings += [] if probe else [NO_PROBE]
        findings += [PLAIN_FIELDS] if self._extra is False else []
        findings += several_models(listed, self.http)
        return Identity(fingerprint, abilities, (*findings, *unreported(fingerprint)))

    async def _probe(self) -> dict[str, Any]:
        """One token, with the fields of the engines and then without them."""
        for extra in (True, False):
            body = self._sampling(extra=extra) | {"max_tokens": 1}
            for path, asked in ((COMPLETIONS, {"prompt": "a"}), (CHAT, _A_MESSAGE)):
                try:
                    reply = await self.http.generate(path, body | asked)
                except ServerError as error:
                    if error.down or error.kind in {"timeout", "status-401", "status-403"}:
                        raise
                    continue
                self._extra = extra
                return fields.mapping(reply)
        self._extra = True
        return {}

    def _lacks(self) -> dict[str, str]:
        """The parameters that it cannot be asked for, and why."""
        return LACKS if self._extra is not False else LACKS | LACKS_PLAIN

    def _sampling(self, request: Request | None = None, *, extra: bool) -> dict[str, Any]:
        body = common_sampling(request) | json_response(parameters_of(request))
        if extra:
            wide = engine_sampling(request) | {"top_k": 1, "return_token_ids": True}
            body |= {name: wide[name] for name in EXTRA}
        if not body["stop"]:
            # Some servers take no empty list.
            del body["stop"]
        return body | ({"model": self._model} if self._model else {})

    async def render(self, prompt: Prompt) -> Rendering:
        """Messages where the prompt has them, else the text: the server tokenizes both itself."""
        bias = await bias_of(prompt, _no_tokenizer)
        if prompt.messages:
            refuse_tools(prompt, self.http.url)
            return Rendering(prompt.id, prompt.digest, messages=prompt.messages, bias=bias)
        return Rendering(prompt.id, prompt.digest, text=prompt.text, bias=bias)

    async def generate(self, request: Request) -> Answer:
        if self._extra is None:
            async with self._asking:
                if self._extra is None:
                    await self.identify()
        rendering, parameters = request.rendering, request.prompt.parameters
        require(request.prompt, self._lacks(), self.http.url)
        body = self._sampling(request, extra=self._extra is not False) | {"max_tokens": request.max_tokens}
        if rendering.messages is not None and rendering.ids is None:
            asked = conversation(rendering.messages, parameters) | chat_logprobs(request.top_logprobs)
            answer = await ask(self.http, CHAT, body | asked, request)
        else:
            if rendering.text is None:
                raise _no_ids(self.http.url)
            logprobs = {"logprobs": request.top_logprobs} if request.top_logprobs else {}
            answer = await ask(self.http, COMPLETIONS, body | {"prompt": rendering.text} | logprobs, request)
        return bounded(answer, request.max_tokens, ())

    @classmethod
    def reproduce(cls, request: Request, model: str | None) -> Sent | None:
        sent = plain_request(request, model)
        if sent is None:
            return None
        # A file does not say whether the server took fields beyond OpenAI's own. It must have taken those that a prompt
        # asked for, since a server that refuses them is never asked such a prompt.
        wide, neutral = engine_sampling(request), engine_sampling()
        asked = {name: wide[name] for name in LACKS_PLAIN if wide[name] != neutral[name]}
        return Sent(sent.path, sent.body | asked)

    async def next_token(self, ids: tuple[int, ...], top: int) -> tuple[TokenLogprob, ...]:
        raise _no_ids(self.http.url)

    async def score(self, ids: tuple[int, ...], start: int, top: int) -> tuple[Scored, ...]:
        raise ServerError("no-scoring", f"{self.http.url} cannot score a given text.", "Take SGLang or vLLM for that.")

    async def pieces(self, ids: tuple[int, ...]) -> dict[int, str]:
        return {}

    async def text_of(self, ids: tuple[int, ...]) -> str | None:
        return None

    async def counters(self) -> Counters | None:
        return None


_A_MESSAGE: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}


async def _no_tokenizer(text: str) -> None:
    del text  # nothing at such a server tells its ids


def _no_ids(url: str) -> ServerError:
    return ServerError(
        "no-prompt-ids",
        f"{url} is a plain OpenAI-like server, which is not known to take token ids.",
        "Render the prompts on this server, as text or messages.",
    )


async def _takes_posts(http: Http, path: str) -> bool:
    """Whether an endpoint is there, without generating: a GET is then refused by its method, not its address."""
    try:
        await http.get(path)
    except ServerError as error:
        if error.down or error.kind in {"timeout", "reset"}:
            raise
        return error.kind in {"status-405", "status-400", "status-422"}
    return True
