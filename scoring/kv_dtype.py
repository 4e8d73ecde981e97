"""
Bytes of one cached vector by number format, scales included.

A vector is one head's key (or value) of one token, or one latent. Where a format keeps scales per block of numbers or
per vector they are counted; one scale for a whole tensor is a few bytes a layer and is not.
"""

import math
from dataclasses import dataclass
from typing import Final

from scoring.geometry_config import Config, GeometryError


@dataclass(frozen=True, slots=True, kw_only=True)
class KvDtype:
    """
    A number format of the KV cache.

    Attributes:
        name: Canonical name.
        bits: Of one number.
        block: Numbers that share a scale; 0 when there is none per block.
        scale_bytes: Of one such scale.
        vector_scale_bytes: Scale (and zero point) kept once for each vector.
        words: What the format keeps, for the explanation.
    """

    name: str
    bits: int
    block: int = 0
    scale_bytes: int = 0
    vector_scale_bytes: int = 0
    words: str = ""

    @property
    def is_fp8(self) -> bool:
        """Say whether this is one of the 8-bit float formats (sparse MLA has a layout of its own for them)."""
        return self.name.startswith("fp8")

    def vector_bytes(self, numbers: int) -> float:
        """Return the bytes of one vector of `numbers`, its scales included."""
        scales = math.ceil(numbers / self.block) * self.scale_bytes if self.block else 0
        return math.ceil(numbers * self.bits / 8) + scales + self.vector_scale_bytes


_TENSOR_SCALE = "one byte a number, one scale for a whole tensor (not counted)"

DTYPES: Final[dict[str, KvDtype]] = {
    dtype.name: dtype
    for dtype in (
        KvDtype(name="fp32", bits=32, words="four bytes a number"),
        KvDtype(name="bf16", bits=16, words="two bytes a number"),
        KvDtype(name="fp16", bits=16, words="two bytes a number"),
        KvDtype(name="fp8_e4m3", bits=8, words=_TENSOR_SCALE),
        KvDtype(name="fp8_e5m2", bits=8, words=_TENSOR_SCALE),
        # A float32 scale (vLLM, per token and head) or float16 scale and zero point (LMDeploy): four bytes either way.
        KvDtype(
            name="int8", bits=8, vector_scale_bytes=4, words="one byte a number, 4 B of scale for each head's vector"
        ),
        KvDtype(
            name="int4", bits=4, vector_scale_bytes=4, words="half a byte a number, 4 B of scale and zero a vector"
        ),
        # OCP microscaling keeps one power-of-two scale for 32 numbers; SGLang's fp4_e2m1 cache keeps one for 16.
        KvDtype(name="fp4", bits=4, block=16, scale_bytes=1, words="half a byte a number, 1 B of scale for 16 numbers"),
        KvDtype(
            name="nvfp4", bits=4, block=16, scale_bytes=1, words="half a byte a number, an fp8 scale for 16 numbers"
        ),
        KvDtype(
            name="mxfp4", bits=4, block=32, scale_bytes=1, words="half a byte a number, 1 B of scale for 32 numbers"
        ),
        KvDtype(name="mxfp8", bits=8, block=32, scale_bytes=1, words="one byte a number, 1 B of scale for 32 numbers"),
    )
}

ALIASES: Final[dict[str, str]] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "fp8": "fp8_e4m3",
    "fp8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3": "fp8_e4m3",
    "e4m3": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "e5m2": "fp8_e5m2",
    "fp8_ds_mla": "fp8_e4m3",
    "fp4_e2m1": "fp4",
    "int8_per_token_head": "int8",
}


def kv_dtype_named(name: str, config: Config | None = None) -> KvDtype:
    """Return the format called `name` (any engine's spelling); `auto` is the model's own. GeometryError if unknown."""
    word = name.strip().lower().removeprefix("torch.").replace("-", "_")
    if word == "auto" and config is not None:
        own = config.values.get("dtype") or config.values.get("torch_dtype") or config.outer.get("torch_dtype")
        word = own.removeprefix("torch.") if isinstance(own, str) else "bf16"
    word = ALIASES.get(word, word)
    if word not in DTYPES:
        raise GeometryError("kv_dtype", f"unknown KV dtype {name!r}; known: auto, {', '.join([*DTYPES, *ALIASES])}")
    return DTYPES[word]
