"""
The engines under study: how the kit starts them, where requests go, who is watched, what is sent, what is predicted
from what.

A pair (fit, held) means: coefficients from the first load's telemetry, the second load predicted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from benchmarks.fidelity_loads import Load
from scoring.model import Role

PORT: Final = 32411
"""Of the single server; the kit's other ports are fixed and lie in a namespace of their own."""
LINEAR: Final = "linear"
"""Decode steps by batch and KV tokens: what KVScope learns of every engine."""
UTILIZATION: Final = "utilization"
"""Decode steps by the share of the pool held and its square: the law of Dynamo's mocker, for parity."""
ROUNDS: Final = 2
"""Loads take turns, so that a machine that is slower for a minute is slower for all of them."""


@dataclass(frozen=True)
class Target:
    """
    One engine or cluster.

    Attributes:
        name: Kebab-case; the folder its recordings lie in.
        title: For the page.
        up: What `engines.sh up` is told.
        environments: What must be installed for it.
        url: Where requests go.
        api: "generate" (SGLang's own) or "completions" (OpenAI's, token ids as the prompt).
        workers: Worker -> (address, role).
        dialect: Who understands their answers.
        frontend: Address whose facts say a worker's capacity where workers do not, or "".
        warm_up: Played first and not kept.
        loads: In the order they are played.
        pairs: (fit, held).
        laws: Of decode steps, each judged by itself.
    """

    name: str
    title: str
    up: tuple[str, ...]
    environments: tuple[str, ...]
    url: str
    api: str
    workers: Mapping[str, tuple[str, Role]]
    dialect: str
    loads: tuple[Load, ...]
    pairs: tuple[tuple[str, str], ...]
    warm_up: Load
    frontend: str = ""
    laws: tuple[str, ...] = (LINEAR,)

    @property
    def is_disaggregated(self) -> bool:
        """Whether prompts and decode steps have workers of their own."""
        return any(role is Role.PREFILL for _, role in self.workers.values())


def _at(port: int) -> str:
    return f"http://127.0.0.1:{port}"


_SGLANG: Final = Target(
    name="sglang",
    title="Real SGLang 0.5.23, one server",
    up=("sglang", str(PORT)),
    environments=("sglang",),
    url=_at(PORT),
    api="generate",
    workers={"unified": (_at(PORT), Role.UNIFIED)},
    dialect="sglang",
    # For a pool of 20,000 tokens. The last load asks for far more than it holds: just at capacity the least error of
    # a step decides whether anything waits at all, well beyond it the queue grows by what steps and prompts take.
    loads=(
        Load("light", 2.0, (20, 300), (16, 96), 60.0, seed=1),
        Load("long", 1.2, (400, 1200), (32, 128), 60.0, seed=2),
        Load("busy", 4.0, (50, 600), (16, 128), 60.0, seed=3),
        Load("pressure", 2.5, (1000, 2200), (128, 400), 30.0, seed=4),
    ),
    pairs=(("busy", "light"), ("busy", "long"), ("long", "busy"), ("busy", "pressure"), ("pressure", "busy")),
    warm_up=Load("warm-up", 2.0, (20, 1500), (8, 40), 8.0, seed=9),
)
_CLUSTER: Final = Target(
    name="sglang-2p2d",
    title="Real SGLang 0.5.23, two prefill and two decode workers behind smg",
    up=("pd-cluster",),
    environments=("sglang", "smg"),
    url=_at(31000),
    api="generate",
    workers={
        "prefill-1": (_at(32001), Role.PREFILL),
        "prefill-2": (_at(32003), Role.PREFILL),
        "decode-1": (_at(32002), Role.DECODE),
        "decode-2": (_at(32004), Role.DECODE),
    },
    dialect="sglang",
    # For pools of 12,000 tokens, of which 512 a request are kept back.
    loads=(
        Load("short", 1.5, (50, 400), (16, 96), 60.0, seed=11),
        Load("mixed", 1.2, (200, 1000), (32, 128), 60.0, seed=12),
        Load("full", 5.0, (300, 1200), (64, 192), 30.0, seed=13),
    ),
    pairs=(("mixed", "short"), ("short", "mixed"), ("mixed", "full")),
    warm_up=Load("warm-up", 1.0, (50, 1000), (8, 40), 10.0, seed=19),
)
_MOCKER: Final = Target(
    name="dynamo-mocker",
    title="Dynamo 1.6.1's mockers, two prefill and two decode, behind its KV router",
    up=("dynamo",),
    environments=("dynamo",),
    url=_at(18000),
    api="completions",
    workers={
        "prefill-1": (_at(18081), Role.PREFILL),
        "prefill-2": (_at(18082), Role.PREFILL),
        "decode-1": (_at(18083), Role.DECODE),
        "decode-2": (_at(18084), Role.DECODE),
    },
    dialect="dynamo",
    frontend=_at(18000),
    # For decode pools of 2,048 blocks of 16 tokens.
    loads=(
        Load("calm", 5.0, (200, 1500), (64, 256), 60.0, seed=21),
        Load("steady", 6.0, (300, 2500), (64, 192), 60.0, seed=22),
        Load("full", 10.0, (1000, 3000), (128, 384), 30.0, seed=23),
    ),
    pairs=(("calm", "steady"), ("steady", "calm"), ("steady", "full")),
    warm_up=Load("warm-up", 2.0, (50, 1000), (8, 40), 6.0, seed=29),
    laws=(LINEAR, UTILIZATION),
)

TARGETS: Final[Mapping[str, Target]] = MappingProxyType({each.name: each for each in (_SGLANG, _CLUSTER, _MOCKER)})
"""Engines under study by name, in the order they are played."""
