"""The reader of Prometheus metrics."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.replay import raw
from verifier.servers.metrics import parse_metrics

LABELS = st.dictionaries(
    st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"])),
    max_size=3,
)


@given(st.dictionaries(st.from_regex(r"[a-z:_]{1,12}", fullmatch=True), st.tuples(LABELS, st.integers(0, 10**9))))
def test_what_is_written_is_read(wanted: dict[str, tuple[dict[str, str], int]]) -> None:
    lines = ["# HELP x y", "# TYPE x counter", ""]
    for name, (labels, value) in wanted.items():
        escaped = {key: text.replace("\\", "\\\\").replace('"', '\\"') for key, text in labels.items()}
        inside = ",".join(f'{key}="{text}"' for key, text in escaped.items())
        lines.append(f"{name}{{{inside}}} {value}.0" if inside else f"{name} {value}")
    found = parse_metrics("\n".join(lines))
    assert {name: metric.total for name, metric in found.items()} == {
        name: value for name, (_, value) in wanted.items()
    }
    assert all(set(found[name].samples[0][0]) == set(labels) for name, (labels, _) in wanted.items())


@given(st.text(max_size=300))
def test_any_text_is_read_without_trouble(text: str) -> None:
    parse_metrics(text)


def test_samples_of_several_workers_are_added() -> None:
    text = 'a_total{engine="0",position="1"} 2.0\na_total{engine="1",position="1"} 3.0\na_total{position="x"} 1\n'
    metric = parse_metrics(text)["a_total"]
    assert metric.total == 6
    assert metric.by("position") == {1: 5}


def test_what_is_no_number_is_passed_over() -> None:
    assert parse_metrics("a NaN\nb +Inf\nc 1e3\nd 1 1700000000\ne\n").keys() == {"c", "d"}


def test_recorded_metrics_are_read_as_their_lines_say() -> None:
    for folder, name in (("vllm_ngram", "metrics_after.txt"), ("llamacpp_draft", "metrics_after.txt")):
        text = raw(folder, name).decode()
        found = parse_metrics(text)
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        assert sum(len(metric.samples) for metric in found.values()) == len(lines)
        for line in lines:
            key, value = line.rsplit(" ", 1)
            assert any(sample == float(value) for _, sample in found[key.partition("{")[0]].samples)
