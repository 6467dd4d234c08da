"""`lossless`: did speculative decoding change my outputs, and is it a bug?

The names below are the public Python interface; `docs/api.md` documents it. Everything else in the package may change
between releases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifier.api import Run, check, compare_files, record, rescore
    from verifier.errors import LosslessError, PromptSetError, ServerError, StoreError
    from verifier.records import Cause, Class, Comparison, Fault, Finding, SuiteVerdict, Summary

__version__ = "0.1.0"

__all__ = [
    "Cause",
    "Class",
    "Comparison",
    "Fault",
    "Finding",
    "LosslessError",
    "PromptSetError",
    "Run",
    "ServerError",
    "StoreError",
    "SuiteVerdict",
    "Summary",
    "__version__",
    "check",
    "compare_files",
    "record",
    "rescore",
]

_ERRORS = frozenset({"LosslessError", "PromptSetError", "ServerError", "StoreError"})
# `compare` would hide the package of that name.
_FUNCTIONS = frozenset({"Run", "check", "compare_files", "record", "rescore"})


if not TYPE_CHECKING:  # else any misspelled name would have the type `Any`

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used.

        Importing any module of the package imports this one first: `lossless --help`, and vLLM when it loads the logits
        processor, must not pay for NumPy and an HTTP client.
        """
        if name.startswith("__") or name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        home = "verifier.api" if name in _FUNCTIONS else "verifier.errors" if name in _ERRORS else "verifier.records"
        value = globals()[name] = getattr(import_module(home), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
