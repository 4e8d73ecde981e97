"""
Remembers what a body parsed to, while the same body object is handed over again.

The poller passes the newest answer of every path at every cycle; paths asked rarely (`/metrics` of a large fleet,
`/server_info`) would otherwise be parsed again each second. Identity, not equality, is compared: that costs nothing,
and an entry keeps its body alive, so that an id cannot come back with other content.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Final, Generic, TypeVar

Parsed = TypeVar("Parsed")
ENTRIES_MAX: Final = 4096
"""Bodies remembered per parser: above the largest fleet polled by one process. Chosen."""


class Remembered(Generic[Parsed]):
    """
    A parser of one or more bodies that answers from memory for the very same objects.

    What it returns is shared between calls: callers must not change it.
    """

    def __init__(self, parse: Callable[..., Parsed], entries_max: int = ENTRIES_MAX) -> None:
        """Wrap `parse`, keeping its newest `entries_max` results."""
        self._parse = parse
        self._entries_max = entries_max
        self._entries: OrderedDict[Hashable, tuple[tuple[bytes | None, ...], Parsed]] = OrderedDict()
        self._lock = Lock()

    def __call__(self, *bodies: bytes | None) -> Parsed:
        """Return what `bodies` parse to."""
        key = tuple(id(body) for body in bodies)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                return entry[1]
        parsed = self._parse(*bodies)
        with self._lock:
            self._entries[key] = (bodies, parsed)
            while len(self._entries) > self._entries_max:
                self._entries.popitem(last=False)
        return parsed
