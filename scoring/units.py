"""
Conversions between the units of the house: tokens, blocks, bytes, seconds.

A conversion is named by both ends. Capacity rounds down, demand rounds up, so that a conversion never
promises room that is not there. Functions work on numbers and, elementwise, on numpy arrays.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", float, NDArray[np.float64])

GIB_BYTES = 1024**3
MIB_BYTES = 1024**2
MICROSECONDS_PER_S = 1e6
MILLISECONDS_PER_S = 1e3


def tokens_to_blocks_up(tokens: Number, block_size_tokens: Number) -> Number:
    """Return the blocks that a demand of `tokens` takes: the last one may be part empty."""
    return np.ceil(tokens / block_size_tokens)  # type: ignore[no-any-return] # numpy types ufuncs as Any


def tokens_to_blocks_down(tokens: Number, block_size_tokens: Number) -> Number:
    """Return the whole blocks that a capacity of `tokens` offers."""
    return np.floor(tokens / block_size_tokens)  # type: ignore[no-any-return] # numpy types ufuncs as Any


def blocks_to_tokens(blocks: Number, block_size_tokens: Number) -> Number:
    """Return the positions that `blocks` hold."""
    return blocks * block_size_tokens


def tokens_to_bytes(tokens: Number, bytes_per_token: Number) -> Number:
    """Return the KV bytes of `tokens`, over all GPUs behind the rank."""
    return tokens * bytes_per_token
