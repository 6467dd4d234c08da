"""Request parameters that not every server takes: which a prompt has, and its biases by token id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from verifier.compare.shaping import shaping
from verifier.errors import ServerError
from verifier.records import Parameters, Prompt
from verifier.servers.protocol import Request

T = TypeVar("T")
REFUSED = "parameter-refused"
"""Kind of the error for a prompt that a server cannot be asked as it is; asking again would change nothing."""


def require(prompt: Prompt, lacks: Mapping[str, str], url: str) -> None:
    """Refuse a prompt with a parameter that a server lacks.

    Args:
        lacks: why, by name of the parameter.

    Raises:
        ServerError: of kind ``parameter-refused``.
    """
    asked = [name for name in shaping(prompt.parameters) if name in lacks]
    if asked:
        reasons = ", and ".join(dict.fromkeys(lacks[name] for name in asked))
        raise ServerError(
            REFUSED,
            f"{url} takes no {' and '.join(asked)}: {reasons}.",
            "Take it out of the prompt, or ask this prompt of another server.",
        )


def refuse_tools(prompt: Prompt, url: str) -> None:
    """Refuse a prompt with tools that would be sent as messages: a chat endpoint parts calls from the text.

    Raises:
        ServerError: of kind ``parameter-refused``.
    """
    if prompt.parameters.tools:
        raise ServerError(
            REFUSED,
            f"{url} takes no tools: only its chat endpoint does, which parts the calls of an answer from its text.",
            "Ask this prompt of a server that reports the ids of messages, such as SGLang, vLLM or llama.cpp.",
        )


async def with_tools(prompt: Prompt, template: Callable[[Parameters], Awaitable[T]], url: str) -> T:
    """The messages of a prompt as ``template`` renders them under parameters.

    Raises:
        ServerError: of kind ``parameter-refused`` where tools make no difference: an older server, or a template that
            knows of none, passes over them in silence.
    """
    rendered = await template(prompt.parameters)
    if prompt.parameters.tools and rendered == await template(replace(prompt.parameters, tools=())):
        raise ServerError(
            REFUSED,
            f"{url} takes no tools: with and without them it renders the same prompt.",
            "Take a model whose chat template supports tools; SGLang needs 0.5.12 or newer.",
        )
    return rendered


async def bias_of(prompt: Prompt, tokenize: Callable[[str], Awaitable[Sequence[int] | None]]) -> dict[int, float]:
    """What a prompt adds to logits, nats by token id, its texts as tokens of this server.

    Raises:
        ServerError: of kind ``parameter-refused``, when a text is not one token here.
    """
    parameters = prompt.parameters
    bias = {int(token): value for token, value in parameters.logit_bias.items()}
    for text, value in parameters.text_bias.items():
        ids = await tokenize(text)
        if ids is None or len(ids) != 1:
            count = "unknown" if ids is None else f"{len(ids)} tokens"
            raise ServerError(
                REFUSED,
                f"A bias is on {text!r}, which is not one token of this model ({count}).",
                "Choose a text that is one token, or give the bias by id in logit_bias.",
            )
        bias[ids[0]] = bias.get(ids[0], 0.0) + value
    return bias


def by_name(request: Request) -> dict[str, float]:
    """The biases of a request as OpenAI's API writes them: ids as strings."""
    return {str(token): value for token, value in request.rendering.bias.items()}


def json_response(parameters: Parameters) -> dict[str, object]:
    """OpenAI's field for a JSON schema; nothing where none is asked for."""
    if parameters.json_schema is None:
        return {}
    schema = {"name": "answer", "schema": parameters.json_schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def refusal(error: ServerError, prompt: Prompt) -> ServerError:
    """The error of a server that refused a request: of kind `REFUSED` where it names a parameter of the prompt."""
    asked, said = shaping(prompt.parameters), error.message.lower()
    is_refused = error.kind in {"status-400", "status-422"}
    if not is_refused or not any(word in said for name in asked for word in _WORDS[name]):
        return error
    return ServerError(
        REFUSED, f"It was refused with {' and '.join(asked)}: {error.message}", "Ask this prompt of another server."
    )


_STRUCTURED = ("schema", "grammar", "structured", "guided")
_WORDS = {
    "ignore_eos": ("eos",),
    "repetition_penalty": ("penalt",),
    "presence_penalty": ("penalt",),
    "frequency_penalty": ("penalt",),
    "logit_bias": ("bias",),
    "text_bias": ("bias",),
    "min_tokens": ("min_tokens", "min_new_tokens"),
    "json_schema": _STRUCTURED,
    "grammar": _STRUCTURED,
    "thinking_budget": ("thinking", "reasoning"),
}
"""What a server's own words about each parameter have in common, in lower case."""
