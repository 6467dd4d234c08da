"""What the end of a failed server's log means, where its own words mislead. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

QUOTED_LINES = 30
"""Lines of a server's log that are quoted when it fails."""

LONGEST_LINE = 400
"""Characters of a quoted line: some engines print their whole configuration in one."""


@dataclass(frozen=True)
class Hint:
    """A pattern in a log, and what it means or what to do."""

    pattern: str
    meaning: str


HINTS = (
    Hint(
        r"captures_underway(\.empty\(\)| == 0)? ?INTERNAL ASSERT FAILED|cudaErrorStreamCaptureInvalidated",
        "This failed assertion about captures that are under way is an out-of-memory during CUDA graph capture: the "
        "allocator could not free anything in the middle of one. Leave the capture more memory "
        "(SGLang: a lower --mem-fraction-static or --cuda-graph-max-bs; vLLM: a lower --gpu-memory-utilization).",
    ),
    Hint(
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "SGLang found no room for its KV cache beside the weights. With speculation the draft model's weights and "
        "cache count too, and a higher --mem-fraction-static then runs out of memory later: use a smaller "
        "--context-length or --max-running-requests, or a quantized draft model.",
    ),
    Hint(
        r"No available memory for the cache blocks|larger than the (maximum number of tokens|available KV cache)",
        "vLLM found no room for its KV cache: raise --gpu-memory-utilization or lower --max-model-len.",
    ),
    Hint(
        r"CUDA out of memory|OutOfMemoryError|cudaMalloc failed: out of memory|CUDA error: out of memory"
        r"|HIP out of memory",
        "The card's memory is full. Is another server still on it (`nvidia-smi`)? With two servers on one card leave "
        "--together out.",
    ),
    Hint(
        r"Address already in use|address already in use|couldn't bind HTTP server socket|Errno 98\]",
        "The port is taken. Write {port} in the command, and a free one is used.",
    ),
    Hint(
        r"gated repo|401 Client Error|Cannot access gated|Invalid user token",
        "The model cannot be downloaded with the rights that this server has: set HF_TOKEN for it.",
    ),
    Hint(
        r"Couldn't connect to ['\"]?https://huggingface\.co|LocalEntryNotFoundError|offline mode is enabled",
        "The model is not on this machine and cannot be downloaded: give the path of a folder.",
    ),
    Hint(
        r"unrecognized arguments|error: invalid argument|unknown argument|No such option|invalid choice:",
        "The engine does not know an option of the command: compare it with the version that is installed.",
    ),
    Hint(
        r"No module named|ModuleNotFoundError",
        "A package is missing in the Python that the command starts: name that Python by its full path.",
    ),
    Hint(
        r"error loading model|failed to load model|unable to load model",
        "llama.cpp could not load the model: is the path right, and the file whole?",
    ),
    Hint(
        r"no kernel image is available|CUDA driver version is insufficient|Torch not compiled with CUDA"
        r"|No CUDA GPUs are available|Found no NVIDIA driver",
        "The engine does not fit the card or its driver, or sees no card: see CUDA_VISIBLE_DEVICES and the driver.",
    ),
    Hint(
        r"NCCL.{0,40}(unhandled|remote process exited|Connection (refused|reset))",
        "NCCL reports what became of the other ranks, not why: the first error of another rank is further up.",
    ),
)

_ELSEWHERE = re.compile(r"See root cause above|Engine core initialization failed|ChildFailedError|died unexpectedly")
"""The parent's last words, when the reason is a child's and further up in the log."""

_ERROR = re.compile(r"^(.*\s)?[\w.]*(Error|Exception)\b: .+")


def explain(log: str, code: int | None) -> list[str]:
    """What is known about a failure, as sentences, the first cause first.

    Args:
        log: the whole log, or as much of its end as there is.
        code: the exit code, 128 and more for a signal; ``None`` while it runs.
    """
    hints = [hint.meaning for hint in HINTS if re.search(hint.pattern, log)]
    if _ELSEWHERE.search(log):
        cause = next((line for line in log.splitlines() if _ERROR.match(line) and not _ELSEWHERE.search(line)), None)
        if cause is not None:
            hints.insert(0, f"The first error in the log is further up: {cause.strip()[:LONGEST_LINE]}")
    if code == 137:
        hints.append("It was killed by SIGKILL, as the kernel does when the machine's memory is full (see `dmesg`).")
    return hints


def quote(log: str, count: int = QUOTED_LINES) -> str:
    """The last lines of a log that are not empty, each shortened. A progress bar's line counts as its last state."""
    lines = (line.rstrip().rsplit("\r", 1)[-1][:LONGEST_LINE] for line in log.split("\n"))
    return "\n".join([line for line in lines if line][-count:])
