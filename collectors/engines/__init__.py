"""
The dialects KVScope understands, and who speaks which.

An engine is one file beside this one and one line in `_DIALECTS`. Order is who is asked first: a dialect that
recognises only its own shape may stand anywhere; one that accepts much stands last.
"""

from collections.abc import Mapping
from typing import Final

from collectors.engines.contract import Answer, Dialect
from collectors.engines.dynamo import DynamoWorker
from collectors.engines.dynamo_frontend import DynamoFrontend
from collectors.engines.router import Router, RouterLoads, RouterMetrics
from collectors.engines.sglang import SGLANG, SGLANG_GET_LOAD, SGLANG_METRICS
from collectors.engines.trtllm import TrtLlm
from collectors.engines.vllm import Vllm

_DIALECTS: Final[tuple[Dialect, ...]] = (
    # Paths of one engine's own first: a poller stops at the first answer that is recognised, and `/metrics` is the
    # poorer half of what an SGLang worker or a router says.
    SGLANG,
    Router(),
    RouterLoads(),
    # Of those at /metrics Dynamo's come first: its workers re-export an engine's series.
    DynamoWorker(),
    DynamoFrontend(),
    SGLANG_METRICS,
    Vllm(),
    TrtLlm(),
    RouterMetrics(),
    SGLANG_GET_LOAD,
)

ENGINES: Final[Mapping[str, Dialect]] = {dialect.name: dialect for dialect in _DIALECTS}
"""Dialect name -> dialect, in the order they are asked."""

if len(ENGINES) != len(_DIALECTS):
    raise ValueError(f"two dialects share a name: {sorted(dialect.name for dialect in _DIALECTS)}")


def identify(answers: Mapping[str, Answer]) -> Dialect | None:
    """Return the first dialect that recognises these answers (path -> answer), or None."""
    return next((dialect for dialect in ENGINES.values() if dialect.recognises(answers)), None)
