"""One record as one line of a file and back: small, rounded to what the numbers mean, keys in the order of the fields.

Logprobs take most of a file, so a line holds the most likely tokens of a position as one flat row,
``[logprob, id, gap, id, gap, …]``: the best token's logprob, then each further token with how far (nats) it lies behind
the best. The best token is the answer's own at that position as a rule; where it is not, its id comes first and the row
has an even number of values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Union, get_args

import msgspec

from verifier.records import SCHEMA_VERSION, Completion, Record, Timing, TokenLogprob

NESTED_LOGPROBS = 1
"""The last version of the format that wrote logprobs as pairs, unrounded."""

LOGPROB_DECIMALS = 4
"""Of the best token's logprob. What is measured by it (decode against prefill) is never below 0.001 nat."""

TIE_DECIMALS = 5
"""Of gaps below 0.1 nat. Logprobs of equal logits differ by up to 1e-5 nat (`compare.evidence.TIE`)."""

SECONDS_DECIMALS = 5


class _Line(Completion, frozen=True, tag="completion", omit_defaults=True):
    """A `Completion` with its logprobs as they lie in a file."""

    top: tuple[tuple[int | float, ...], ...] | None = None  # type: ignore[assignment]  # that is what differs


_LINES: Any = Union[tuple(_Line if kind is Completion else kind for kind in get_args(Record))]  # noqa: UP007
_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(_LINES)
_NESTED_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
_ENCODER = msgspec.json.Encoder()


def encode(record: Record, schema: int = SCHEMA_VERSION) -> bytes:
    """A record as JSON, without the newline."""
    if isinstance(record, Completion) and schema > NESTED_LOGPROBS:
        record = _packed(record)
    return _ENCODER.encode(record)


def decode(line: bytes, schema: int = SCHEMA_VERSION) -> Record:
    """The record of one line, validated.

    Raises:
        ValueError: naming the field that is wrong.
    """
    return unpacked(decode_fast(line, schema))


def decode_fast(line: bytes, schema: int = SCHEMA_VERSION) -> Record:
    """As `decode`, but logprobs stay as they lie in the file: for whoever only wants to know what the line is."""
    try:
        return (_DECODER if schema > NESTED_LOGPROBS else _NESTED_DECODER).decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _packed(completion: Completion) -> _Line:
    values: dict[str, Any] = msgspec.structs.asdict(completion)
    ids = completion.ids or ()
    if completion.top is not None:
        values["top"] = tuple(
            _row(top, ids[place] if place < len(ids) else None) for place, top in enumerate(completion.top)
        )
    if completion.timing is not None:
        values["timing"] = _rounded(completion.timing)
    return _Line(**values)


def _rounded(timing: Timing) -> Timing:
    seconds = {name: value for name, value in msgspec.structs.asdict(timing).items() if value is not None}
    return Timing(**{name: round(value, SECONDS_DECIMALS) for name, value in seconds.items()})


def _row(top: Sequence[TokenLogprob], own: int | None) -> tuple[int | float, ...]:
    """One position. Tokens of probability zero are left out: JSON has no infinity, and they say nothing."""
    entries = [entry for entry in top if math.isfinite(entry.logprob)]
    if not entries:
        return ()
    best = entries[0]
    row: list[int | float] = [] if best.id == own else [best.id]
    row.append(_number(best.logprob, LOGPROB_DECIMALS))
    exact = short = -math.inf
    for place, entry in enumerate(entries[1:]):
        gap = best.logprob - entry.logprob
        if round(gap, TIE_DECIMALS) != round(exact, TIE_DECIMALS):
            rounded = _number(gap, _decimals(abs(gap), runner_up=place == 0))
            # Tokens rounded to fewer decimals must not come to lie before those that they are behind.
            short = max(short, rounded) if gap > exact else rounded
        exact = gap
        row += [entry.id, short]
    return tuple(row)


def _decimals(gap: float, *, runner_up: bool) -> int:
    """Decimals of a gap in nats: the nearer a token is to a tie, the more they mean.

    The tolerance is measured on the runner-up and is at most 0.5; whether a token lies 5.1 or 5.12 nats behind changes
    nothing.
    """
    if gap < 0.1:
        return TIE_DECIMALS
    if gap < 1:
        return 4 if runner_up else 3
    return 3 if runner_up else 1


def _number(value: float, decimals: int) -> int | float:
    """Rounded, and without a fraction that is zero."""
    short = round(value, decimals)
    return int(short) if short == int(short) else short


def unpacked(record: Record) -> Record:
    """A record of `decode_fast` as every other part of the program knows it.

    Raises:
        ValueError: when a row of logprobs is none.
    """
    if not isinstance(record, _Line):
        return record
    values = {name: getattr(record, name) for name in Completion.__struct_fields__}
    if record.top is not None:
        ids = record.ids or ()
        values["top"] = tuple(
            _entries(row, ids[place] if place < len(ids) else None) for place, row in enumerate(record.top)
        )
    return Completion(**values)


def _entries(row: Sequence[int | float], own: int | None) -> tuple[TokenLogprob, ...]:
    if not row:
        return ()
    values = list(row) if len(row) % 2 == 0 else [own, *row]
    ids = values[::2]
    if not all(isinstance(token, int) for token in ids):
        raise ValueError(f"`top` holds {row!r}, which is not a row of token ids and gaps")
    try:
        best = float(values[1] or 0.0)
        gaps = [0.0, *(float(gap or 0.0) for gap in values[3::2])]
    except OverflowError:
        raise ValueError("`top` holds a number that is too large") from None
    # A difference of two short decimals is rounded, so that reading and writing again changes nothing.
    return tuple(
        TokenLogprob(int(token or 0), round(best - gap, TIE_DECIMALS)) for token, gap in zip(ids, gaps, strict=True)
    )
