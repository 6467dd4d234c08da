"""TensorRT-LLM's `trtllm-serve`: `/v1/completions` with token ids in, and ids or text out.

Facts about its answers: a request with an unknown field is refused; ids come with ``detokenize: false`` and then there
is no text; logprobs on a server that speculates ended the process in some versions and are refused in others, so they
are asked for only where the caller asks; it cannot score a given text; its settings are not reported.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from msgspec import UNSET

from verifier.errors import ServerError
from verifier.records import (
    Abilities,
    Finding,
    Fingerprint,
    Prompt,
    Rendering,
    SpeculationSettings,
    TokenLogprob,
)
from verifier.servers import fields
from verifier.servers.completions import CHAT, COMPLETIONS, ask, engine_sampling, on_openai_path, parameters_of
from verifier.servers.ending import bounded
from verifier.servers.findings import NO_PROBE, hidden_switch, no_ids, unreported
from verifier.servers.http import Http
from verifier.servers.models import asked_model, several_models
from verifier.servers.names import model_name
from verifier.servers.parameters import bias_of, refuse_tools
from verifier.servers.protocol import Answer, Counters, Identity, Request, Scored, Sent
from verifier.servers.tokenizing import conversation
from verifier.servers.vocabulary import Vocabulary

NO_TEXT = Finding(
    "no-text",
    "TensorRT-LLM gives token ids or text, not both: the ids were chosen, and answers to raw prompts have no text.",
)


class TensorRTLLM:
    """One trtllm-serve server."""

    engine: ClassVar[str] = "tensorrt-llm"
    recognition_order: ClassVar[int] = 40
    model_owner: ClassVar[str | None] = "tensorrt_llm"
    one_model: ClassVar[bool] = False

    def __init__(self, http: Http) -> None:
        self.http = http
        self.vocabulary = Vocabulary()
        self._model: str | None = None
        self._ends: set[int] = set()
        self._listed: object = None
        self._asking = asyncio.Lock()
        self._drafted = self._accepted = self._steps = 0

    @classmethod
    async def recognise(cls, http: Http) -> bool:
        models = fields.mapping(await http.has("/v1/models"))
        return fields.first(models.get("data")).get("owned_by") == "tensorrt_llm"

    async def identify(self) -> Identity:
        await self._ready()
        version = fields.text(fields.mapping(await self.http.has("/version")).get("version"))
        info = fields.mapping(await self.http.has("/server_info"))
        probe = await self._probe()
        choice = fields.first(probe.get("choices"))
        speculates = (fields.number(choice.get("avg_decoded_tokens_per_iter")) or 0.0) > 1.0
        counters = await self.counters()
        fingerprint = Fingerprint(
            engine=self.engine,
            version=fields.known(version),
            model=fields.known(model_name(self._model)),
            slots=fields.known(fields.whole(info.get("max_batch_size"))),
            speculation=SpeculationSettings("unknown") if speculates or (counters and counters.drafted) else UNSET,
        )
        abilities = Abilities(
            token_ids=bool(choice.get("token_ids")) if probe else None,
            prompt_ids=True,
            scoring=False,
            draft_counters="metrics" if counters else "request",
            chat_template=None,
            detokenize=False,
        )
        findings = [] if probe else [NO_PROBE]
        findings += [NO_TEXT] if abilities.token_ids else no_ids(abilities)
        findings.append(hidden_switch("relaxed or typical acceptance, or a forced number of accepted tokens,"))
        findings += several_models(self._listed, self.http)
        return Identity(fingerprint, abilities, (*findings, *unreported(fingerprint)))

    async def _ready(self) -> None:
        if self._model is None:
            async with self._asking:
                if self._model is None:
                    self._listed = await self.http.get("/v1/models")
                    self._model = fields.text(asked_model(self._listed, self.http).get("id"))

    async def _probe(self) -> dict[str, Any]:
        try:
            body = sampling(self._model) | {"prompt": "a", "max_tokens": 2}
            return fields.mapping(await self.http.generate(COMPLETIONS, body))
        except ServerError as error:
            if error.down:
                raise
            return {}

    async def render(self, prompt: Prompt) -> Rendering:
        """Ids of a raw text. Messages stay messages: this engine gives nobody the ids of a rendered conversation."""
        bias = await bias_of(prompt, self._bare)
        if prompt.text is None:
            refuse_tools(prompt, self.http.url)
            return Rendering(prompt.id, prompt.digest, messages=prompt.messages, bias=bias)
        ids = await self._tokenize(prompt.text)
        if not ids:
            return Rendering(prompt.id, prompt.digest, text=prompt.text, bias=bias)
        self.vocabulary.learn(ids)
        return Rendering(prompt.id, prompt.digest, ids=ids, bias=bias)

    async def _bare(self, text: str) -> tuple[int, ...] | None:
        """Ids of a text without what the tokenizer puts before it, which it cannot be asked to leave out."""
        with_text, before = await self._tokenize(text), await self._tokenize("")
        return None if with_text is None else with_text[len(before or ()) :]

    async def _tokenize(self, text: str) -> tuple[int, ...] | None:
        try:
            reply = fields.mapping(await self.http.ask("/_internal/tokenize", {"prompt": text}))
        except ServerError as error:
            if error.down or error.kind == "timeout":
                raise
            return None
        return fields.integers(reply.get("tokens"))

    async def generate(self, request: Request) -> Answer:
        await self._ready()
        parameters, rendering = request.prompt.parameters, request.rendering
        if rendering.messages is not None and rendering.ids is None:
            body = chat_sampling(self._model, request) | conversation(rendering.messages, parameters)
            if request.top_logprobs:
                body |= {"logprobs": True, "top_logprobs": request.top_logprobs}
            return await ask(self.http, CHAT, body | {"max_tokens": request.max_tokens}, request)
        # Ids of biases it checks itself.
        await self.vocabulary.check(rendering.ids or (), self.http.url)
        body = sampling(self._model, request) | {"max_tokens": request.max_tokens}
        body["prompt"] = rendering.ids if rendering.ids is not None else rendering.text
        if request.top_logprobs:
            body["logprobs"] = request.top_logprobs
        answer = await ask(self.http, COMPLETIONS, body, request)
        self.vocabulary.learn(answer.ids)
        if isinstance(answer.stop, int):
            self._ends.add(answer.stop)
        return bounded(answer, request.max_tokens, set() if parameters.ignore_eos else self._ends)

    @classmethod
    def reproduce(cls, request: Request, model: str | None) -> Sent | None:
        return on_openai_path(request, sampling(model, request), chat_sampling(model, request))

    async def next_token(self, ids: tuple[int, ...], top: int) -> tuple[TokenLogprob, ...]:
        raise ServerError(
            "no-logprobs",
            f"{self.http.url}: TensorRT-LLM names the tokens of its logprobs by text, which several tokens can share.",
            "Take the evidence from another engine with the same model, or go without.",
        )

    async def score(self, ids: tuple[int, ...], start: int, top: int) -> tuple[Scored, ...]:
        raise ServerError("no-scoring", "TensorRT-LLM cannot score a given text.", "Take another engine as reference.")

    async def pieces(self, ids: tuple[int, ...]) -> dict[int, str]:
        return {}

    async def text_of(self, ids: tuple[int, ...]) -> str | None:
        return None

    async def counters(self) -> Counters | None:
        """Sums over the iterations that the server has reported so far: it reports each of them once."""
        try:
            reported = await self.http.get("/metrics")
        except ServerError as error:
            if error.down:
                raise
            return None
        stats = [fields.mapping(entry.get("specDecodingStats")) for entry in fields.mappings(reported)]
        self._drafted += sum(fields.whole(entry.get("numDraftTokens")) or 0 for entry in stats)
        self._accepted += sum(fields.whole(entry.get("numAcceptedTokens")) or 0 for entry in stats)
        self._steps += sum(fields.whole(entry.get("numRequestsWithDraftTokens")) or 0 for entry in stats)
        return Counters(self._drafted, self._accepted, self._steps or None) if self._drafted else None


def sampling(model: str | None, request: Request | None = None) -> dict[str, Any]:
    """Fields of its `CompletionRequest` and no other, where 0 stands for all tokens in ``top_k``.

    Those that not every version knows are sent only where they are asked for.
    """
    parameters = parameters_of(request)
    body = engine_sampling(request)
    body |= {"model": model or "", "top_k": 0, "use_beam_search": False, "detokenize": False}
    if parameters.json_schema is not None:
        body["response_format"] = {"type": "json", "schema": parameters.json_schema}
    if parameters.grammar:
        body["response_format"] = {"type": "ebnf", "ebnf": parameters.grammar}
    if parameters.thinking_budget is not None:
        body["thinking_token_budget"] = parameters.thinking_budget
    return body


def chat_sampling(model: str | None, request: Request) -> dict[str, Any]:
    """As `sampling`; a chat request has no switch between ids and text."""
    body = sampling(model, request)
    del body["detokenize"]
    return body
