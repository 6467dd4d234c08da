"""A logits processor for vLLM that makes it decode a given answer, so that `lossless` can see how it would score it.

vLLM loads it by itself where this package is installed beside it (entry point group ``vllm.logits_processors``), and
nothing else imports it. A request asks for it with ``"vllm_xargs": {"lossless_force": [ids]}``: the answer then begins
with those ids, one per decode step. vLLM takes raw logprobs, its default, before logits processors run, so they stay
the model's own. Other requests are left alone. vLLM loads no such processor on a server that speculates.

This file uses nothing of vLLM or torch but the base class, so that it can be tested without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    LogitsProcessor = object
else:
    try:
        from vllm.v1.sample.logits_processor import LogitsProcessor
    except ImportError:
        LogitsProcessor = object

FIELD = "lossless_force"
"""The name under ``vllm_xargs`` (``SamplingParams.extra_args``) that holds the ids."""

MOST_IDS = 1 << 20
"""No model has a longer context; a longer list is a mistake."""


class Params(Protocol):
    """The part of vLLM's ``SamplingParams`` that is read here."""

    @property
    def extra_args(self) -> Any: ...


class Batch(Protocol):
    """The part of vLLM's ``BatchUpdate`` that is read here: which rows of the batch changed since the last step.

    ``added`` holds (row, params, prompt ids, output ids), the last being the request's own list, which grows as it
    decodes. ``moved`` holds (from, to, direction); a direction named ``SWAP`` exchanges the two rows.
    """

    @property
    def removed(self) -> Sequence[int]: ...
    @property
    def added(self) -> Sequence[tuple[int, Any, Any, Any]]: ...
    @property
    def moved(self) -> Sequence[tuple[int, int, Any]]: ...


@dataclass(frozen=True)
class Forced:
    """One request: the ids to decode, and vLLM's own list of those decoded so far."""

    ids: tuple[int, ...]
    decoded: Sequence[int]

    @property
    def next(self) -> int | None:
        """The id to decode in this step; ``None`` once the list is used up."""
        at = len(self.decoded)
        return self.ids[at] if at < len(self.ids) else None


def forced_ids(extra_args: Any) -> tuple[int, ...]:
    """The ids that a request wants decoded; empty where it wants none.

    Raises:
        ValueError: when the field holds anything but a list of token ids.
    """
    wanted = extra_args.get(FIELD) if isinstance(extra_args, dict) else None
    if wanted is None:
        return ()
    if not isinstance(wanted, list | tuple) or len(wanted) > MOST_IDS:
        raise ValueError(f"{FIELD} must be a list of at most {MOST_IDS} token ids")
    for token in wanted:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise ValueError(f"{FIELD} must hold token ids: whole numbers from 0 up")
    return tuple(wanted)


class Rows:
    """Which rows of the batch are forced, kept up to date from step to step."""

    def __init__(self) -> None:
        self._forced: dict[int, Forced] = {}

    def update(self, batch: Batch | None) -> None:
        """Follow the batch. ``None`` means that no row changed. Never raises for what a request holds: an exception in
        here would end the engine, and all requests with it."""
        if batch is None:
            return
        for row in batch.removed:
            self._forced.pop(row, None)
        for row, params, _, decoded in batch.added:
            self._put(row, _lenient(params, decoded))
        for source, target, direction in batch.moved:
            moving, displaced = self._forced.pop(source, None), self._forced.pop(target, None)
            self._put(target, moving)
            if getattr(direction, "name", direction) == "SWAP":
                self._put(source, displaced)

    def due(self) -> Iterable[tuple[int, int]]:
        """(row, id) of every row that has an id to decode in this step."""
        return [(row, token) for row, forced in self._forced.items() if (token := forced.next) is not None]

    def _put(self, row: int, forced: Forced | None) -> None:
        if forced is None:
            self._forced.pop(row, None)
        else:
            self._forced[row] = forced


def mask(logits: Any, due: Iterable[tuple[int, int]]) -> Any:
    """Leave each row its one token. ``logits`` is a (rows, vocabulary) array that is changed in place.

    A row or id outside the array is passed over: on a GPU such an index would end the whole process. The client sees
    that other ids came back.
    """
    rows, vocabulary = logits.shape
    for row, token in due:
        if row < rows and token < vocabulary:
            logits[row] = float("-inf")
            logits[row, token] = 0.0
    return logits


def _lenient(params: Params, decoded: Sequence[int]) -> Forced | None:
    try:
        ids = forced_ids(getattr(params, "extra_args", None))
    except ValueError:
        return None
    return Forced(ids, decoded) if ids else None


class ForcedDecoding(LogitsProcessor):
    """The processor as vLLM's V1 engine drives it: `update_state`, then `apply`, once per step."""

    def __init__(self, vllm_config: Any = None, device: Any = None, is_pin_memory: bool = False) -> None:
        del vllm_config, device, is_pin_memory  # vLLM passes them to every processor; this one needs none
        self._rows = Rows()

    @classmethod
    def validate_params(cls, sampling_params: Params) -> None:
        """Refuse a malformed field where vLLM asks beforehand, so that the client is told.

        Raises:
            ValueError: see `forced_ids`.
        """
        forced_ids(sampling_params.extra_args)

    def is_argmax_invariant(self) -> bool:
        """No: it decides what a greedy request takes, so vLLM must not skip it for one."""
        return False

    def update_state(self, batch_update: Batch | None) -> None:
        """Called before each step with the rows that changed."""
        self._rows.update(batch_update)

    def apply(self, logits: Any) -> Any:
        """Called once per step with the logits of all rows."""
        return mask(logits, self._rows.due())
