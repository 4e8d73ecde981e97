"""
One demo worker: the endpoints of a real SGLang 0.5.23 server, over what its ranks last published.

It answers from the published snapshot, as the real HTTP process does, and never from the live pool.
Read next: `rows` and `exposition` (what is written), `fleet` (who publishes).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from demo import wire
from demo.exposition import WorkerFacts, to_text
from demo.hosting import Site, application, json_response, loads_response, metrics_response
from demo.rows import to_row
from demo.state import RankFacts, RankState, RankTimings, WorkerTimings

SNAPSHOT_STEPS: Final = 15
"""Decode steps between two published snapshots: the engine's default `--load-snapshot-publish-interval`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """
    What a worker is made of.

    Attributes:
        mode: "prefill", "decode" or "null" (unified), the engine's words.
        accelerator: Device name.
        accelerators_per_rank: GPUs behind one rank.
        bandwidth_bytes_per_s: Line rate of its network end.
        rack: Where it stands.
        bootstrap_port: Prefill's rendezvous port as it would announce it; nobody listens there.
    """

    name: str
    mode: str
    model: str
    accelerator: str
    accelerators_per_rank: int
    context_tokens: int
    ranks: tuple[RankFacts, ...]
    reserved_decode_tokens: int
    chunked_prefill_tokens: int
    bandwidth_bytes_per_s: float
    rack: str
    bootstrap_port: int = 8998


@dataclass(slots=True)
class Worker:
    """
    A worker and what it has published.

    Attributes:
        published: The newest snapshot of each rank; a rank that never published answers zeros, as the real one does.
        clock: Wall clock in epoch seconds.
    """

    plan: WorkerPlan
    clock: Callable[[], float]
    port: int = 0
    published: list[RankState] = field(default_factory=list)
    rank_timings: list[RankTimings] = field(default_factory=list)
    timings: WorkerTimings = field(default_factory=WorkerTimings)
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    extra_routes: Callable[[web.Application], None] | None = None
    site: Site = field(init=False)

    def __post_init__(self) -> None:
        self.restart()
        self.site = Site(self._app, self.port)

    @property
    def name(self) -> str:
        """Name in the fleet file."""
        return self.plan.name

    def restart(self) -> None:
        """Begin again as a process does: nothing published, every counter at zero."""
        self.published = [RankState() for _ in self.plan.ranks]
        self.rank_timings = [RankTimings() for _ in self.plan.ranks]
        self.timings = WorkerTimings()
        self.requests = Counter()

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of `/v1/loads`, ascending by rank."""
        return [
            to_row(facts, state, self.plan.mode) if state.at_s > 0.0 else _nothing_yet(facts.dp_rank)
            for facts, state in zip(self.plan.ranks, self.published, strict=True)
        ]

    def head(self) -> dict[str, Any]:
        """Return the fields of `/v1/loads` before the rows; its time is that of the answer, not of the figures."""
        return {
            "timestamp": wire.iso_utc(self.clock()),
            "version": wire.VERSION,
            "accelerator": self.plan.accelerator,
            "num_accelerators": self.plan.accelerators_per_rank,
        }

    def metrics(self) -> bytes:
        """Return the exposition."""
        mode = self.plan.mode
        facts = WorkerFacts(
            model_name=self.plan.model,
            engine_type="unified" if mode == "null" else mode,
            has_rank_label=len(self.plan.ranks) > 1,
            context_tokens=self.plan.context_tokens,
        )
        ranks = list(zip(self.plan.ranks, self.published, self.rank_timings, strict=True))
        return to_text(facts, ranks, self.timings, self.requests)

    def model_info(self) -> dict[str, Any]:
        """Return `/model_info`."""
        return {
            "model_path": self.plan.model,
            "served_model_name": self.plan.model,
            "tokenizer_path": self.plan.model,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "load_format": "auto",
            "reasoning_parser": None,
            "tool_call_parser": None,
            "disaggregation_mode": self.plan.mode,
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": "qwen3",
            "architectures": ["Qwen3ForCausalLM"],
        }

    def server_info(self) -> dict[str, Any]:
        """Return `/server_info`: the start-up arguments that matter to a reader, and no secret."""
        plan, first = self.plan, self.plan.ranks[0]
        dp_size = len(plan.ranks)
        states = [
            {
                "last_gen_throughput": state.generated_per_s,
                "effective_max_running_requests_per_dp": facts.max_running_count,
                "memory_usage": {
                    "weight": facts.weight_gib,
                    "kvcache": facts.kv_gib,
                    "startup_available": round(facts.kv_gib + facts.spare_gib, 2),
                    "token_capacity": facts.usable_tokens,
                    "token_capacity_swa": None,
                    "graph": {"decode": facts.graph_gib},
                },
            }
            for facts, state in zip(plan.ranks, self.published, strict=True)
        ]
        return {
            "model_path": plan.model,
            "served_model_name": plan.model,
            "tp_size": plan.accelerators_per_rank * dp_size,
            "pp_size": 1,
            "dp_size": dp_size,
            "enable_dp_attention": dp_size > 1,
            "nnodes": 1,
            "node_rank": 0,
            "context_length": plan.context_tokens,
            "page_size": first.page_tokens,
            "kv_cache_dtype": "auto",
            "mem_fraction_static": 0.85,
            "max_total_tokens": None,
            "max_running_requests": first.max_running_count * dp_size,
            "chunked_prefill_size": plan.chunked_prefill_tokens,
            "disable_radix_cache": False,
            "radix_eviction_policy": "lru",
            "enable_hierarchical_cache": False,
            "load_balance_method": "follow_bootstrap_room" if plan.mode == "prefill" else "round_robin",
            "disaggregation_mode": plan.mode,
            "disaggregation_transfer_backend": "mooncake",
            "disaggregation_bootstrap_port": plan.bootstrap_port,
            "num_reserved_decode_tokens": plan.reserved_decode_tokens,
            "enable_metrics": True,
            "load_snapshot_publish_interval": SNAPSHOT_STEPS,
            "speculative_algorithm": None,
            "status": "ready",
            "max_total_num_tokens": first.usable_tokens,
            "max_req_input_len": min(plan.context_tokens, first.usable_tokens) - 6,
            "internal_states": states,
            "version": wire.VERSION,
            "frontend": "python",
        }

    def models(self) -> dict[str, Any]:
        """Return `/v1/models`, which routers ask when a worker registers."""
        model = {"id": self.plan.model, "object": "model", "created": 1761782400, "owned_by": "sglang"}
        model |= {"root": self.plan.model, "parent": None, "max_model_len": self.plan.context_tokens}
        return {"object": "list", "data": [model]}

    def _app(self) -> web.Application:
        app = application()
        app.middlewares.append(self._counter())
        answers: tuple[tuple[str, Callable[[], Any]], ...] = (
            ("/model_info", self.model_info),
            ("/get_model_info", self.model_info),
            ("/server_info", self.server_info),
            ("/get_server_info", self.server_info),
            ("/v1/models", self.models),
        )
        for path, answer in answers:
            app.router.add_get(path, _json_handler(answer))
        app.router.add_get("/v1/loads", self._loads)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health", self._health)
        app.router.add_get("/health_generate", self._health)
        if self.extra_routes is not None:
            self.extra_routes(app)
        return app

    def _counter(self) -> Any:
        @web.middleware
        async def count(request: web.Request, handler: Any) -> web.StreamResponse:
            response: web.StreamResponse = await handler(request)
            resource = request.match_info.route.resource
            # Known paths only: a stranger's paths must not grow the exposition.
            if resource is not None:
                self.requests[resource.canonical, str(response.status)] += 1
            return response

        return count

    async def _loads(self, request: web.Request) -> web.Response:
        return loads_response(request, self.head, self.rows)

    async def _metrics(self, request: web.Request) -> web.Response:
        return metrics_response(request, self.metrics())

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()


def _json_handler(answer: Callable[[], Any]) -> Callable[[web.Request], Any]:
    async def handle(_request: web.Request) -> web.Response:
        return json_response(answer())

    return handle


def _nothing_yet(dp_rank: int) -> dict[str, Any]:
    """Return the row of a slot nobody has written: zeros, time 0.0, no sections."""
    names = (
        *("num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens", "num_used_tokens"),
        *("num_total_tokens", "num_active_tokens", "num_prealloc_ready_tokens", "max_total_num_tokens"),
        "max_running_requests",
    )
    row: dict[str, Any] = {"timestamp": 0.0, "dp_rank": dp_rank, **dict.fromkeys(names, 0)}
    row |= dict.fromkeys(("token_usage", "gen_throughput", "cache_hit_rate", "utilization"), 0.0)
    return row | {"total_prefill_uncached_tokens": 0, "total_prefill_busy_us": 0, "decode_moments": None}
