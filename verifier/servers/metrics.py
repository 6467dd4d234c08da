"""Prometheus metrics as the engines publish them: counters by name and label."""

from __future__ import annotations

import math
import re
from collections import defaultdict

from verifier.errors import ServerError
from verifier.servers.http import Http

_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>[-+.\deEinfNa]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Metric:
    """The samples of one name."""

    def __init__(self) -> None:
        self.samples: list[tuple[dict[str, str], float]] = []

    @property
    def total(self) -> int:
        """The sum over all labels: engines count each worker apart."""
        return int(sum(value for _, value in self.samples))

    def by(self, label: str) -> dict[int, int]:
        """Sums by the integer value of a label, such as the position of a draft."""
        sums: dict[int, int] = defaultdict(int)
        for labels, value in self.samples:
            if labels.get(label, "").isdigit():
                sums[int(labels[label])] += int(value)
        return dict(sums)


def parse_metrics(text: str) -> defaultdict[str, Metric]:
    """Samples by metric name; lines that are no samples are passed over."""
    metrics: defaultdict[str, Metric] = defaultdict(Metric)
    for line in text.splitlines():
        match = _LINE.match(line)
        if not match:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if math.isfinite(value):
            metrics[match["name"]].samples.append((dict(_LABEL.findall(match["labels"] or "")), value))
    return metrics


async def optional_metrics(http: Http) -> defaultdict[str, Metric] | None:
    """The server's metrics, or ``None`` where it publishes none.

    Raises:
        ServerError: when nothing answers at all.
    """
    try:
        return parse_metrics(await http.text("/metrics")) or None
    except ServerError as error:
        if error.down:
            raise
        return None
