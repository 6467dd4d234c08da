"""Numbers as people read them."""

from __future__ import annotations


def per_tokens(rate: float, what: str = "divergence") -> str:
    """A rate per token, such as ``1 divergence per 240 tokens``; ``no divergences`` for 0.

    Rates of more than one in two tokens are given per token, where "one in" would no longer be a count.
    """
    if rate < 1e-12:  # a count of tokens that no run reaches
        return f"no {what}s"
    if rate > 0.5:
        return f"{rate:.2g} {what}{'' if f'{rate:.2g}' == '1' else 's'} per token"
    return f"1 {what} per {_rounded(1 / rate):,} tokens"


def _rounded(value: float) -> int:
    """A count with two significant digits, as the rates that it stands for are no better known."""
    whole = round(value)
    digits = len(str(whole))
    return whole if digits <= 3 else int(round(value, 2 - digits))
