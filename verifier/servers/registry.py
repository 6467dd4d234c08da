"""The engines that are supported: the one list of them."""

from __future__ import annotations

from verifier.servers.engines.llamacpp import LlamaCpp
from verifier.servers.engines.openai import OpenAI
from verifier.servers.engines.sglang import SGLang
from verifier.servers.engines.tensorrt_llm import TensorRTLLM
from verifier.servers.engines.vllm import VLLM
from verifier.servers.protocol import Engine

ENGINES: list[type[Engine]] = [LlamaCpp, OpenAI, SGLang, TensorRTLLM, VLLM]
"""In no particular order. It is not in `verifier.servers.engines` itself, because vLLM loads its logits processor from
that package and must not load the adapters with it."""


def in_order() -> list[type[Engine]]:
    """All engines, in the order in which a server is tested for them."""
    return sorted(ENGINES, key=lambda engine: (engine.recognition_order, engine.engine))


def by_owner(owner: object) -> type[Engine] | None:
    """The engine that writes ``owner`` as the owner of its models; ``None`` where that identifies none."""
    known = {engine.model_owner: engine for engine in ENGINES if engine.model_owner is not None}
    return known.get(owner) if isinstance(owner, str) else None


def by_name(name: str) -> type[Engine] | None:
    """The engine of that name, in upper or lower case; ``None`` where there is none."""
    return next((engine for engine in ENGINES if engine.engine == name.lower()), None)
