"""llama.cpp's own HTTP server in this process: `python -m verifier.servers.process.embedded --model M.gguf --port P`.

The `xllamacpp` package carries the server as a library without a command line, so this is its command line, with the
settings that the demo, `lossless serve` and the tests need. It ends when its standard input ends, so whoever started it
need only exit.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from verifier.errors import LosslessError

NONE = "none"
LOSSY = "lossy"
DRAFT = "draft"
ALIASES = {
    "mtp": "draft-mtp",
    "eagle3": "draft-eagle3",
    "dflash": "draft-dflash",
    "dspark": "draft-dspark",
    DRAFT: "draft-simple",
    "ngram": "ngram-simple",
}
"""Short names of the demo for llama.cpp's own."""

NGRAM_KINDS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
DRAFT_KINDS = ("draft-simple", "draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark")
KINDS = (NONE, *ALIASES, *DRAFT_KINDS, *NGRAM_KINDS, LOSSY)
"""Every name that `--kind` takes: short names, llama.cpp's own names, and a method that is broken on purpose."""

WITH_A_FILE = frozenset({"draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark"})
"""Kinds that draft with a model in a file of its own; an MTP layer is part of the target's file."""

NGRAM_TOKENS, NGRAM_DRAFT = 4, 12
"""Tokens that must repeat before an n-gram kind drafts, and tokens that it then drafts. With llama.cpp's own 12 and 48
it rarely drafts in answers as short as the demo's, and a run without drafts tests nothing."""

DRAFT_TOKENS = 3
"""Tokens that the other kinds draft in each step."""

SYNTHETIC_LENGTH = 3.0
"""Mean acceptance length of the lossy kind: llama.cpp then accepts drafts at random, whatever the model computes."""

METADATA_BYTES = 1 << 16
"""At the start of a GGUF file, where its architecture is described. The vocabulary comes later."""


@dataclass(frozen=True)
class Speculation:
    """What a server is asked to do. ``types`` are llama.cpp's names, in the order given; empty means no speculation.
    ``lossy``: drafts are accepted at random."""

    types: tuple[str, ...] = ()
    lossy: bool = False


def _require_one_draft(types: list[str]) -> None:
    drafting = [name for name in types if name in DRAFT_KINDS]
    if len(drafting) > 1:
        raise LosslessError(
            f"llama.cpp drafts with one model at a time, and {' and '.join(drafting)} are {len(drafting)}.",
            "Join one of them with n-gram kinds.",
        )


def parsed(kind: str) -> Speculation:
    """``kind`` as `Speculation`: names from `KINDS`, joined by commas. `LOSSY` breaks the others; alone, it leaves the
    choice of the method open.

    Raises:
        LosslessError: for a name not in `KINDS`, a name that is given twice, ``none`` beside others, or two kinds that
            draft with a model: llama.cpp takes a single one.
    """
    names = [name.strip() for name in kind.split(",")]
    for name in names:
        if name not in KINDS:
            raise LosslessError(f"There is no kind of speculation {name!r}.", f"Choose from {', '.join(KINDS)}.")
    types = [ALIASES.get(name, name) for name in names]
    for name in types:
        if types.count(name) > 1:
            raise LosslessError(f"The kind {name!r} is given twice.", "Give each kind once.")
    if NONE in types and len(types) > 1:
        raise LosslessError("`none` cannot be joined with other kinds.", "Leave it out.")
    _require_one_draft(types)
    return Speculation(tuple(name for name in types if name not in (NONE, LOSSY)), LOSSY in types)


def has_mtp(model: Path) -> bool:
    """Whether a GGUF file says that it holds an MTP layer."""
    with model.open("rb") as file:
        return b".nextn_predict_layers" in file.read(METADATA_BYTES)


def completed(speculation: Speculation, model: Path) -> Speculation:
    """``speculation`` with a method to break where only `LOSSY` was given: MTP where the model has it, else n-gram."""
    if speculation.lossy and not speculation.types:
        return Speculation(("draft-mtp" if has_mtp(model) else "ngram-simple",), lossy=True)
    return speculation


def draft_file(types: tuple[str, ...], model: Path, given: Path | None) -> Path | None:
    """The draft model's file: the one given, else the only one of its kind next to the model. `draft-simple` drafts
    with the model itself where none is given.

    Raises:
        LosslessError: when a kind needs a file and there is none.
    """
    needing = [name for name in types if name in WITH_A_FILE]
    if given is not None or not needing:
        return given
    name = needing[0].removeprefix("draft-")
    if name == "simple":
        return model
    found = sorted(model.parent.glob(f"*-{name}-*.gguf"))
    if len(found) != 1:
        raise LosslessError(
            f"{needing[0]} needs a draft model, and there is {'no' if not found else 'more than one'} file "
            f"*-{name}-*.gguf next to {model.name}.",
            "Give its GGUF file with --draft.",
        )
    return found[0]


def parameters(
    model: str,
    port: int,
    kind: str,
    *,
    threads: int,
    context: int,
    slots: int,
    synthetic: float,
    draft: Path | None = None,
    n_max: int | None = None,
) -> Any:
    """llama.cpp's settings for one server.

    Everything but speculation is alike for every kind, so that nothing else can explain a difference.

    Args:
        context: tokens of all slots together.
        synthetic: mean acceptance length of the lossy kind.
        n_max: tokens that one step drafts at most; each kind's own default when ``None``.

    Raises:
        LosslessError: as `parsed` and `draft_file` do.
    """
    import xllamacpp

    wanted = completed(parsed(kind), Path(model))
    p = xllamacpp.CommonParams()
    p.model.path = model
    p.port = port
    p.hostnames = ["127.0.0.1"]
    p.n_ctx = context
    p.n_parallel = slots
    p.cpuparams.n_threads = threads
    p.cpuparams_batch.n_threads = threads
    p.n_gpu_layers = 0
    p.endpoint_metrics = p.endpoint_slots = p.endpoint_props = True
    types = xllamacpp.common_speculative_type
    if wanted.types:
        p.speculative.types = [
            getattr(types, f"COMMON_SPECULATIVE_TYPE_{name.upper().replace('-', '_')}") for name in wanted.types
        ]
    drafts = p.speculative.draft
    file = draft_file(wanted.types, Path(model), draft)
    if file is not None:
        drafts.mparams.path = str(file)
    drafts.n_max = n_max or DRAFT_TOKENS
    drafts.n_gpu_layers = 0
    drafts.cpuparams.n_threads = drafts.cpuparams_batch.n_threads = threads
    for table in (p.speculative.ngram_simple, p.speculative.ngram_map_k, p.speculative.ngram_map_k4v):
        table.size_n, table.size_m = NGRAM_TOKENS, n_max or NGRAM_DRAFT
    if wanted.lossy:
        p.speculative.synth_len = synthetic
    return p


def serve(settings: Any) -> None:
    """Start the server in this process and say where it listens; it ends the process on Ctrl-C."""
    import xllamacpp

    server = xllamacpp.Server(settings)
    print(f"serving {server.listening_address}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
    # The server's threads do not stop for an ordinary exit.
    os._exit(0)


def _end_with_input() -> None:
    # Not `sys.stdin`: its lock would be held when the interpreter exits for another reason.
    while os.read(0, 1024):
        pass
    os._exit(0)


@click.command()
@click.option("--model", required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--port", required=True, type=int)
@click.option("--kind", default=NONE, show_default=True, help="One or several, joined by commas.")
@click.option("--draft", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A draft model's file.")
@click.option("--n-max", type=click.IntRange(min=1), help="Tokens that one step drafts at most.")
@click.option("--threads", default=1, show_default=True)
@click.option("--context", default=2048, show_default=True, help="Tokens of one slot.")
@click.option("--slots", default=1, show_default=True)
@click.option("--synthetic-length", default=SYNTHETIC_LENGTH, show_default=True, help="For the lossy kind.")
def main(
    model: str,
    port: int,
    kind: str,
    draft: Path | None,
    n_max: int | None,
    threads: int,
    context: int,
    slots: int,
    synthetic_length: float,
) -> None:
    """Serve one GGUF model on loopback until standard input ends."""
    try:
        settings = parameters(
            model,
            port,
            kind,
            threads=threads,
            context=context * slots,
            slots=slots,
            synthetic=synthetic_length,
            draft=draft,
            n_max=n_max,
        )
    except LosslessError as error:
        raise click.UsageError(f"{error.message} {error.advice}") from None
    threading.Thread(target=_end_with_input, daemon=True).start()
    serve(settings)


if __name__ == "__main__":
    main()
