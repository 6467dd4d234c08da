"""What every engine's adapter can do. `check` and `capture` know servers by this protocol alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from verifier.records import (
    Abilities,
    Finding,
    Fingerprint,
    Finish,
    Prompt,
    Rendering,
    Speculation,
    Timing,
    TokenLogprob,
)
from verifier.records.answers import FunctionCall, TextToken
from verifier.servers.http import Http


@dataclass(frozen=True)
class Identity:
    """A server's fingerprint, what it can be asked for, and what was noticed on the way."""

    fingerprint: Fingerprint
    abilities: Abilities
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Request:
    """One greedy request: every sampling parameter that could change a greedy answer is sent with it."""

    prompt: Prompt
    rendering: Rendering
    max_tokens: int
    top_logprobs: int = 0
    """How many of the most likely tokens to return at each position; 0 asks for no logprobs at all."""
    stream: bool = False
    """Ask for the answer in pieces. What comes out is the same `Answer`; where the server does not report how long
    its prefill took, ``timing.prefill`` is the client's time to the first token."""
    reuse_prefix: bool = False
    """Whether the server may use what it kept of an earlier request; answers that are compared are never asked so."""

    @property
    def min_tokens(self) -> int:
        """The prompt's least length, but no more than the limit of the run: servers refuse that."""
        return min(self.prompt.parameters.min_tokens, self.max_tokens)


@dataclass(frozen=True)
class Origin:
    """What an answer says of where it comes from; ``None`` where it does not say."""

    id: str | None = None
    """Of this answer alone, as a rule."""
    model: str | None = None
    build: str | None = None
    """Of the weights or of the backend: SGLang's ``weight_version``, OpenAI's ``system_fingerprint``."""


@dataclass(frozen=True)
class Answer:
    """What came back, in one vocabulary. See `records.Completion` for the fields."""

    text: str
    finish: Finish
    ids: tuple[int, ...] | None = None
    stop: str | int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    timing: Timing | None = None
    speculation: Speculation | None = None
    top: tuple[tuple[TokenLogprob, ...], ...] | None = None
    surplus: int = 0
    notes: tuple[str, ...] = ()
    """Defects of this answer that are no difference, such as "counts 8 tokens but returned 7 ids"."""
    reasoning_length: int | None = None
    tool_calls: tuple[FunctionCall, ...] = ()
    text_tokens: tuple[TextToken, ...] | None = None
    origin: Origin = Origin()


@dataclass(frozen=True)
class Scored:
    """What a server thinks of one given token after a given prefix. ``rank`` counts from 1 (the argmax)."""

    id: int
    logprob: float
    rank: int | None
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True)
class Counters:
    """Draft counters of a server since its start; differences over a run show what speculation did in it."""

    drafted: int
    accepted: int
    verify_steps: int | None = None
    per_position: dict[int, int] = field(default_factory=dict)


class Server(Protocol):
    """One server of one engine.

    All methods raise `verifier.errors.ServerError` when the server gives no usable answer.
    """

    engine: ClassVar[str]
    http: Http

    @classmethod
    async def recognise(cls, http: Http) -> bool:
        """Whether the server at ``http`` is of this engine. Costs at most two requests and generates nothing."""
        ...

    async def identify(self) -> Identity:
        """What the server is and can do. May generate one token to see what an answer carries."""
        ...

    async def render(self, prompt: Prompt) -> Rendering:
        """The prompt as it will be sent to BOTH servers: token ids where the engine gives and takes them."""
        ...

    async def generate(self, request: Request) -> Answer:
        """One greedy answer."""
        ...

    async def next_token(self, ids: tuple[int, ...], top: int) -> tuple[TokenLogprob, ...]:
        """The ``top`` most likely tokens after ``ids``, best first, by a fresh prefill. Not on a speculative server."""
        ...

    async def score(self, ids: tuple[int, ...], start: int, top: int) -> tuple[Scored, ...]:
        """Each token of ``ids[start:]`` in the distribution after the tokens before it, by one prefill.

        Only where `Abilities.scoring` is ``"prefill"``; other adapters raise `ServerError` of kind ``no-scoring``.
        Requires 1 <= start <= len(ids). Not on a speculative server.
        """
        ...

    async def pieces(self, ids: tuple[int, ...]) -> dict[int, str]:
        """The text of each token by itself; empty where the engine cannot decode. A part of a character is U+FFFD."""
        ...

    async def text_of(self, ids: tuple[int, ...]) -> str | None:
        """The text that ids decode to together, special tokens spelled out; ``None`` where the engine cannot decode."""
        ...

    async def counters(self) -> Counters | None:
        """Draft counters since the server's start, or ``None`` where it does not publish them."""
        ...


@dataclass(frozen=True)
class Sent:
    """An HTTP POST as data: a path below the server's address, and a JSON body."""

    path: str
    body: dict[str, Any]


class Engine(Server, Protocol):
    """An adapter class: a `Server` plus what the rest of the package has to know of its engine."""

    recognition_order: ClassVar[int]
    """Engines are tried from low to high. Sure signs come first, what fits any server comes last."""
    model_owner: ClassVar[str | None]
    """``owned_by`` of its models in ``/v1/models``; ``None`` where that does not identify the engine."""
    one_model: ClassVar[bool]
    """Whether its native endpoints take no model name, so that only the first model can be used."""

    def __init__(self, http: Http) -> None: ...

    @classmethod
    def reproduce(cls, request: Request, model: str | None) -> Sent | None:
        """The request that `generate` sends, without fields that are random or only know a live server.

        Pure. ``None`` where the rendering holds no prompt.

        Args:
            model: the name under which the server knows its model; ``None`` where it is unknown.
        """
        ...


@runtime_checkable
class TellsShaped(Protocol):
    """A server that also reports distributions with penalties and biases applied; most report the plain model only."""

    counts_prompt: ClassVar[bool]
    """Whether penalties look at the prompt as at the answer, so that a prefix can stand for what was said."""

    async def shaped_token(self, request: Request, top: int) -> tuple[TokenLogprob, ...]:
        """The ``top`` most likely tokens after a request's prompt as its parameters leave them, best first.

        Not on a speculative server.
        """
        ...


@runtime_checkable
class ForcesDecode(Protocol):
    """A server that may decode a given answer token by token; whether it does is `Abilities.forced_decoding`."""

    async def decode_given(
        self, prompt: tuple[int, ...], answer: tuple[int, ...], top: int
    ) -> tuple[Scored, ...] | None:
        """Each token of ``answer`` in the plain model's distribution at the decode step that emits it.

        ``None`` where the server decodes no given answers, whatever it said before: take `Server.score` then. Not on a
        speculative server.
        """
        ...
