"""Server-sent events, cut anywhere: bytes in, the payload of each complete event out."""

from __future__ import annotations

DONE = b"[DONE]"
"""The payload by which OpenAI-like streams say that nothing follows."""

_BOM = b"\xef\xbb\xbf"


class Events:
    """Takes a stream apart. The same bytes give the same events, however they are cut into pieces.

    Lines may end in LF, CRLF or CR. Several ``data`` lines of one event are joined by a line feed. A line that begins
    with ``error:``, as some servers write it, is an event whose payload is ``{"error": …}``. Comments and other fields
    are passed over.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._data: list[bytes] = []
        self._began = False
        self._after_return = False
        self._fresh = True
        """Whether the next piece begins a new event."""

    def feed(self, piece: bytes) -> list[bytes]:
        """Payloads of the events that ``piece`` completes."""
        if not piece:
            return []
        whole = self._fresh and piece.startswith(b"data: ") and piece.endswith(b"\n\n")
        if whole and piece.find(b"\n") == len(piece) - 2 and b"\r" not in piece:
            # One whole event, as most pieces are: this runs tens of thousands of times a second.
            self._began = True
            return [piece[6:-2]]
        if self._after_return and piece[:1] == b"\n":
            # The CR before it ended the line already.
            piece = piece[1:]
        self._after_return = piece[-1:] == b"\r"
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in piece:
            if piece:
                self._rest.append(piece)
                self._fresh = False
            return []
        head, *lines = piece.split(b"\n")
        self._rest.append(head)
        lines.insert(0, b"".join(self._rest))
        last = lines.pop()
        self._rest = [last] if last else []
        events = self._events(lines)
        self._fresh = not self._rest and not self._data and not self._after_return
        return events

    def close(self) -> list[bytes]:
        """Payloads of what is left when the stream ends: an event whose blank line never came, maybe cut short."""
        line, self._rest = b"".join(self._rest), []
        return self._events([line, b""] if line else [b""])

    def _events(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        if not self._began and lines:
            self._began = True
            lines[0] = lines[0].removeprefix(_BOM)
        for line in lines:
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line.startswith(b"error:"):
                self._data.append(b'{"error":' + line[6:] + b"}")
        return events
