"""`lossless.toml`: servers by name, the pairs to check, and the options of the check."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from verifier.choices import suggestion
from verifier.compare.fingerprints import ALLOWABLE
from verifier.errors import LosslessError
from verifier.records import Invocation
from verifier.run_options import BOUNDS, OPTIONS, Kind, problem
from verifier.runner.invocation import with_options
from verifier.runner.managed import HEALTH_SECONDS, Source
from verifier.runner.settings import Settings


class ServerEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """``[servers.NAME]``: a ``command`` with ``{port}``, or the ``url`` of a server that runs. ``health_deadline`` is
    in seconds."""

    command: str | None = None
    url: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    health_deadline: float = HEALTH_SECONDS

    def __post_init__(self) -> None:
        _require("health_deadline", self.health_deadline)

    def source(self) -> Source:
        return Source(self.url, self.command, self.environment, self.health_deadline)


class MatrixEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """``[[matrix]]``: one speculative server to be checked against a reference, both by name."""

    reference: str
    speculative: str
    name: str = ""
    """In the table and as a folder; the speculative server's own name where it is empty."""


_TYPES: Mapping[Kind, Any] = {
    "text": str, "words": tuple[str, ...], "flag": bool, "whole": int, "number": float, "path": str, "folder": str,
}  # fmt: skip


def _require_options(table: Struct) -> None:
    for name in BOUNDS.keys() & set(table.__struct_fields__):
        _require(name, getattr(table, name))
    unknown = sorted(set(getattr(table, "allow_mismatch", None) or ()) - ALLOWABLE)
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise ValueError(f"`allow_mismatch` names {names}. {suggestion(unknown, ALLOWABLE)}")


CHECK_TABLE: type[Struct] = msgspec.defstruct(
    "CheckTable",
    [
        (one.name, (Literal[one.choices] if one.choices else _TYPES[one.kind]) | None, None)
        for one in OPTIONS
        if one.in_table
    ],
    namespace={"__post_init__": _require_options},
    frozen=True,
    forbid_unknown_fields=True,
)
"""``[check]``: options of the check by name, with ``_`` for ``-``. The command line wins over them."""


def _require(name: str, value: float | None) -> None:
    """msgspec puts the table's name behind the message."""
    wrong = None if value is None else problem(name, value)
    if wrong:
        raise ValueError(wrong)


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    servers: dict[str, ServerEntry] = field(default_factory=dict)
    matrix: tuple[MatrixEntry, ...] = ()
    check: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """One entry of the matrix, with its names resolved."""

    name: str
    reference: str
    speculative: Source
    made_by: Invocation | None = None
    """The command that checks this method alone, where it is not `check --config FILE --only NAME`."""


@dataclass(frozen=True)
class Config:
    """A file that was read and is consistent. ``references`` are the sources of the reference servers by name."""

    path: Path
    references: Mapping[str, Source]
    methods: tuple[Method, ...]
    options: Mapping[str, Any]

    def settings(self, settings: Settings, given: Collection[str] = ()) -> Settings:
        """``settings`` with the file's options, except for the names in ``given``, which the command line has set."""
        options = {name: value for name, value in self.options.items() if name not in given}
        values = settings.options() | options

        def strength(name: str) -> int:
            return 2 if name in given else 1 if name in options else 0

        if strength("fail_on") > strength("allow"):
            values["allow"] = tuple(name for name in values["allow"] if name not in values["fail_on"])
        step = settings.invocation
        return Settings.of(values, invocation=with_options(step, options) if step is not None else None)

    def only(self, names: Collection[str]) -> Config:
        """The file with only these entries of the matrix; all of them when ``names`` is empty.

        Raises:
            LosslessError: for a name that is none of them.
        """
        known = [method.name for method in self.methods]
        for name in names:
            if name not in known:
                raise LosslessError(f"{self.path} has no matrix entry {name!r}.", f"There are {', '.join(known)}.")
        return replace(self, methods=tuple(one for one in self.methods if not names or one.name in names))


def load(path: Path) -> Config:
    """Read a file and resolve the names in it.

    Raises:
        LosslessError: naming the file and what is wrong in it.
    """
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        raw = toml.loads(path.read_text(encoding="utf-8"))
        file = msgspec.convert(raw, _File)
        options = msgspec.structs.asdict(msgspec.convert(file.check, CHECK_TABLE))
    except OSError as error:
        raise LosslessError(f"{path} cannot be read: {error.strerror}.", "Check the path.") from None
    except UnicodeDecodeError:
        raise LosslessError(f"{path} is not UTF-8.", "Save it as UTF-8.") from None
    except toml.TOMLDecodeError as error:
        raise LosslessError(f"{path}: {error}.", "See docs/servers.md for what it may contain.") from None
    except msgspec.ValidationError as error:
        raise LosslessError(f"{path}{_located(raw, error)}.", "See docs/servers.md for what it may contain.") from None
    return _looked_up(path, file, {name: value for name, value in options.items() if value is not None})


def _located(raw: Mapping[str, Any], error: msgspec.ValidationError) -> str:
    """An error with the table that it is in: msgspec writes ``[...]`` for the name of a server."""
    tables: list[tuple[str, Any, type[Struct]]] = []
    servers, matrix = raw.get("servers"), raw.get("matrix")
    if isinstance(servers, dict):
        tables += [(f"[servers.{name}]", entry, ServerEntry) for name, entry in servers.items()]
    if isinstance(matrix, list):
        tables += [(f"[[matrix]], entry {number}", entry, MatrixEntry) for number, entry in enumerate(matrix, 1)]
    tables.append(("[check]", raw.get("check", {}), CHECK_TABLE))
    for name, entry, kind in tables:
        try:
            msgspec.convert(entry, kind)
        except msgspec.ValidationError as wrong:
            return f", {name}: {str(wrong).replace('`$.', '`')}"
    return f": {error}"


def _looked_up(path: Path, file: _File, options: Mapping[str, Any]) -> Config:
    if not file.matrix:
        raise LosslessError(f"{path} has no [[matrix]] entry.", "Add one with `reference` and `speculative`.")
    methods = []
    for entry in file.matrix:
        for role in (entry.reference, entry.speculative):
            if role not in file.servers:
                known = ", ".join(file.servers) or "none"
                raise LosslessError(f"{path}: [servers.{role}] is missing.", f"Servers in the file: {known}.")
        name = entry.name or entry.speculative
        if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or name.startswith("."):
            raise LosslessError(f"{path}: {name!r} cannot be a folder's name.", "Use letters, digits, `-` and `_`.")
        methods.append(Method(name, entry.reference, file.servers[entry.speculative].source()))
    names = [method.name for method in methods]
    for name in names:
        if names.count(name) > 1:
            raise LosslessError(f"{path}: two matrix entries are named {name!r}.", "Give them a `name`.")
    for name, server in file.servers.items():
        if (server.command is None) == (server.url is None) and server.command is None:
            raise LosslessError(f"{path}: [servers.{name}] has neither `command` nor `url`.", "Give one of them.")
        try:
            server.source().require()
        except LosslessError as error:
            raise LosslessError(f"{path}, [servers.{name}]: {error.message}", error.advice) from None
    references = {method.reference: file.servers[method.reference].source() for method in methods}
    return Config(path, references, tuple(methods), options)
