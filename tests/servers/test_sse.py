"""The parser of server-sent events: the same bytes give the same events, wherever they are cut."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.replay import CAPTURES, events, parsed_events
from verifier.servers.sse import DONE, Events


def taken(pieces: list[bytes]) -> list[bytes]:
    parser = Events()
    found = [payload for piece in pieces for payload in parser.feed(piece)]
    return found + parser.close()


PAYLOADS = st.lists(
    st.one_of(
        st.text(max_size=20).map(lambda text: json.dumps({"text": text}, ensure_ascii=False)),
        st.just("[DONE]"),
    ),
    max_size=6,
)


@given(PAYLOADS, st.sampled_from(["\n", "\r\n", "\r"]), st.data())
def test_cutting_anywhere_changes_nothing(payloads: list[str], newline: str, data: st.DataObject) -> None:
    # JSON keeps line breaks escaped; the few others that text may hold are none to SSE, but U+2028 and the like stay.
    stream = "".join(f": comment{newline}data: {payload}{newline}{newline}" for payload in payloads).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert taken(pieces) == [payload.encode() for payload in payloads]


@given(st.binary(max_size=200), st.data())
def test_any_bytes_give_the_same_events_however_they_are_cut(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert taken(pieces) == taken([stream])


@given(st.sampled_from(["\n", "\r\n", "\r"]))
def test_one_byte_at_a_time(newline: str) -> None:
    stream = f"data: {{}}{newline}data: 🙂{newline}{newline}data: [DONE]{newline}{newline}".encode()
    assert taken([bytes([byte]) for byte in stream]) == ["{}\n🙂".encode(), DONE]


@given(st.lists(st.lists(st.sampled_from(["", "a", "data: b"]), min_size=1, max_size=3), max_size=4), st.data())
def test_pieces_that_end_with_a_line_are_no_events_yet(wanted: list[list[str]], data: st.DataObject) -> None:
    lines = [line for event in wanted for line in (*(f"data: {text}\n" for text in event), "\n")]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lines)), max_size=6)))
    pieces = ["".join(lines[start:end]).encode() for start, end in zip([0, *cuts], [*cuts, len(lines)], strict=True)]
    assert taken(pieces) == ["\n".join(event).encode() for event in wanted]


def test_an_event_of_two_pieces_is_one() -> None:
    assert taken([b"data: a\n", b"data: b\n\n", b"data: c\n\n"]) == [b"a\nb", b"c"]
    assert taken([b"data: a", b"data: b\n\n"]) == [b"adata: b"]
    assert taken([b"data: a\n\nda", b"ta: b\n\n"]) == [b"a", b"b"]


def test_a_last_event_without_its_blank_line_is_given_at_the_end() -> None:
    assert taken([b"data: 1\n\ndata: [DONE]"]) == [b"1", DONE]
    assert taken([b"data: 1\n\ndata: 2\n"]) == [b"1", b"2"]


def test_several_data_lines_are_one_event() -> None:
    assert taken([b"data: a\ndata: b\n\n"]) == [b"a\nb"]


def test_the_space_after_the_colon_is_not_needed_and_only_one_is_taken() -> None:
    assert taken([b"data:a\n\ndata:  b\n\n"]) == [b"a", b" b"]


def test_other_fields_and_comments_are_passed_over() -> None:
    assert taken([b": ping\nevent: x\nid: 4\nretry: 10\ndata: a\n\n: ping\n\n"]) == [b"a"]


def test_an_error_line_is_an_event_with_an_error() -> None:
    (payload,) = taken([b'error: {"message": "no"}\n\n'])
    assert json.loads(payload) == {"error": {"message": "no"}}


def test_a_byte_order_mark_is_passed_over() -> None:
    assert taken([b"\xef\xbb", b"\xbfdata: a\n\n"]) == [b"a"]


def test_nothing_is_no_event() -> None:
    assert taken([]) == taken([b"", b"\n\n\n"]) == []


def test_recorded_streams_are_read_as_their_lines_say() -> None:
    streams = sorted(CAPTURES.glob("*/*.sse"))
    assert len(streams) >= 12
    for path in streams:
        content = path.read_bytes()
        assert parsed_events(content) == events(content), path.name
        assert events(content), path.name
