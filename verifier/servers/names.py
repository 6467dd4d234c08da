"""Names as they go into a fingerprint: of models, without the folders of a machine, and of versions."""

from __future__ import annotations

import re
from pathlib import PurePath, PureWindowsPath


def model_name(path: str | None) -> str | None:
    """A model's name: ``owner/name`` of a hub as it is, of a path only the last part.

    A hub's cache folder, ``models--owner--name/snapshots/…``, gives the hub's name again.
    """
    if not path or not path.strip("/\\ "):
        return None
    cached = re.search(r"models--([^/\\]+?)--([^/\\]+)", path)
    if cached:
        return f"{cached[1]}/{cached[2]}"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", path) and path[0] != "." and not path.endswith(".gguf"):
        return path
    return PureWindowsPath(path).name if "\\" in path else PurePath(path).name


def version_tuple(version: str | None) -> tuple[int, ...] | None:
    """The leading numbers of a version, such as ``(0, 5, 17)`` of "0.5.17.post1", or ``None`` when it has none."""
    match = re.match(r"v?(\d+(?:\.\d+)+)", version or "")
    return tuple(int(part) for part in match[1].split(".")) if match else None
