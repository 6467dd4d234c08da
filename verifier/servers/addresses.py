"""Addresses as users write them, and the model behind one that serves several."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from verifier.errors import LosslessError
from verifier.records import ARMS, Arm
from verifier.redaction import has_secret, rejected_address

MODEL = "#"
"""Parts the model from the address. What follows it in a URL is never sent, so it can mean nothing else there."""


def parse_address(address: str) -> str:
    """A base URL without path, from ``:30000``, ``30000``, ``host:port``, ``host`` or a full http(s) URL.

    A trailing ``/v1`` is taken off, since engines have endpoints beside it; any other path stays as a prefix. What
    follows a ``#`` is the name of a model, and stays as it is.

    Raises:
        LosslessError: when it is none of these, or carries a user, password, query or what looks like a key.
    """
    text, model = split_model(address.strip())
    if re.fullmatch(r":?\d+", text):
        text = f"http://127.0.0.1:{text.removeprefix(':')}"
    elif "://" not in text:
        text = f"http://{text}"
    wrong = LosslessError(
        f"{rejected_address(address)!r} is not a server address.",
        "Write :30000, host:30000 or http(s)://host:port/prefix, and #MODEL behind it where a server has several; give "
        "keys by LOSSLESS_API_KEY.",
    )
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise wrong from None
    host = parts.hostname
    if parts.scheme not in {"http", "https"} or not host or parts.username or parts.password:
        raise wrong
    if re.search(r"//[^/]*@", address):
        # A "#" in a password would make a model, and so a word in files, of what follows it.
        raise wrong
    if "@" in parts.path or has_secret(parts.path) or has_secret(model or ""):
        raise wrong
    if parts.query or not re.fullmatch(r"[\w.:%-]+", host) or port == 0 or not (model or "").isprintable():
        raise wrong
    shown_host = f"[{host}]" if ":" in host else host
    path = re.sub(r"/v1$", "", parts.path.rstrip("/"))
    return f"{parts.scheme}://{shown_host}{f':{port}' if port else ''}{path}{f'{MODEL}{model}' if model else ''}"


def split_model(address: str) -> tuple[str, str | None]:
    """An address without the model, and the model that it names, if it does."""
    base, _, model = address.partition(MODEL)
    return base, model or None


def key_variables(arm: Arm) -> tuple[str, str]:
    """The environment variables that an arm's API key may come from; the first that is set counts.

    There is no option for a key: a command line can be read by anyone on the machine.
    """
    return f"LOSSLESS_{arm.upper()}_API_KEY", "LOSSLESS_API_KEY"


def keys_of_others(arm: Arm, environment: Mapping[str, str]) -> frozenset[str]:
    """The variables with keys that are not the key of this arm: a server that is started for it must not see them."""
    every = {name for each in ARMS for name in key_variables(each)}
    own = next((name for name in key_variables(arm) if environment.get(name)), None)
    return frozenset(every - {own})


def without_user(address: str) -> str:
    """An address that may be shown: nobody's name and password in it."""
    return re.sub(r"(^|//)[^/]*@", r"\1…@", address)


def is_loopback(url: str) -> bool:
    """Whether a base URL points at this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
