"""
Traffic as arrays: what arrives, when, how long, and which prompt blocks it shares with others.

Requests are rows; `offsets` cuts the flat `hash_ids` into rows. A hash id stands for one block of
`hash_block_tokens` tokens *and everything before it* (as Mooncake's traces and every engine's block hashes do).
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from scoring.model import FloatArray

IntArray = NDArray[np.int64]


def _whole(values: object, name: str) -> IntArray:
    array = np.ascontiguousarray(values)
    if array.size and not np.issubdtype(array.dtype, np.number):
        raise ValueError(f"{name} must be numbers, got {array.dtype}")
    whole = array.astype(np.int64)
    if array.size and not np.array_equal(whole, array):
        row = int(np.flatnonzero(whole != array)[0])
        raise ValueError(f"{name}[{row}] is {array[row]}: must be a whole number")
    return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficArrays:
    """
    Requests as columns, in any order (the simulation sorts by arrival and keeps ties in row order).

    Attributes:
        arrival_s: Seconds from the start of the run, finite and >= 0. Shape (n,).
        prompt_tokens: At least 1. Shape (n,).
        output_tokens: 0 is allowed: such a request ends with its prefill and has no first token. Shape (n,).
        offsets: Row i's hashes are `hash_ids[offsets[i]:offsets[i + 1]]`. Shape (n + 1,).
        hash_ids: Not negative. Only whole hash blocks of the prompt are ever shared.
        hash_block_tokens: Tokens of one hash block.
        class_ids: SLO class by row. Shape (n,).
        tenant_ids: Tenant by row. Shape (n,).

    Raises:
        ValueError: naming column, row and value.
    """

    arrival_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    offsets: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    hash_ids: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    hash_block_tokens: int = 64
    class_ids: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    tenant_ids: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("arrival_s", np.ascontiguousarray(self.arrival_s, np.float64))
        for name in ("prompt_tokens", "output_tokens", "offsets", "hash_ids", "class_ids", "tenant_ids"):
            put(name, _whole(getattr(self, name), name))
        count = len(self.arrival_s)
        if not len(self.offsets):
            put("offsets", np.zeros(count + 1, np.int64))
        for name in ("class_ids", "tenant_ids"):
            if not len(getattr(self, name)):
                put(name, np.zeros(count, np.int64))
        for name, length in (
            ("prompt_tokens", count),
            ("output_tokens", count),
            ("class_ids", count),
            ("tenant_ids", count),
            ("offsets", count + 1),
        ):
            if len(getattr(self, name)) != length:
                raise ValueError(f"{name} has {len(getattr(self, name))} rows, {length} expected")
        if self.hash_block_tokens < 1:
            raise ValueError(f"hash_block_tokens is {self.hash_block_tokens}: must be at least 1")
        for name, low in (("arrival_s", 0.0), ("prompt_tokens", 1), ("output_tokens", 0)):
            values = getattr(self, name)
            wrong = np.flatnonzero(~(np.isfinite(values) & (values >= low)))
            if len(wrong):
                row = int(wrong[0])
                raise ValueError(f"{name}[{row}] is {values[row]}: must be a finite number of at least {low:g}")
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.hash_ids) or np.any(np.diff(self.offsets) < 0):
            raise ValueError(f"offsets must rise from 0 to {len(self.hash_ids)}, the number of hash_ids")
        if len(self.hash_ids) and self.hash_ids.min() < 0:
            at = int(np.flatnonzero(self.hash_ids < 0)[0])
            raise ValueError(f"hash_ids[{at}] is {self.hash_ids[at]}: must not be negative")

    def __len__(self) -> int:
        return len(self.arrival_s)
