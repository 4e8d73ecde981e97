"""
The settings themselves: one frozen tree, built once, passed down. Each field has its default and its help here and
nowhere else; docs/config.md is written from this file (`documentation.py`) and a test compares the two.

Read next: `load` (a file -> Settings or one SettingsError with every problem).
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from collectors.settings.values import (
    Bandwidth,
    BaseUrl,
    Duration,
    EnvironmentName,
    HttpUrl,
    Name,
    Network,
    Ratio,
    Size,
    Weight,
)
from scoring.model import Role


class Section(BaseModel):
    """A table of the fleet file: frozen, every key known, every default valid."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class ProcessMode(StrEnum):
    """Where the poller runs."""

    AUTO = "auto"
    THREAD = "thread"
    CHILD = "child"


class WorkerSettings(Section):
    """One worker of the static list."""

    url: BaseUrl = Field(description="Base address of the worker's HTTP server.")
    name: Name | None = Field(default=None, description="Name on every page; host:port when absent. Must be unique.")
    role: Role | None = Field(
        default=None,
        description="unified, prefill or decode; what the engine says when absent. Never guessed from a name.",
    )
    engine: str = Field(default="auto", description="Dialect to speak; `auto` asks and recognises the answer.")
    model: str | None = Field(default=None, description="Model served, where the engine does not say it.")
    rack: str | None = Field(default=None, description="Label for topology rules and filters.")
    zone: str | None = Field(default=None, description="Label for topology rules and filters.")
    tenants: tuple[str, ...] | None = Field(
        default=None, description="Tenants the worker may serve; everyone when absent."
    )
    labels: dict[str, str] = Field(default_factory=dict, description="Further labels, shown and filterable.")
    link_bandwidth_bytes_per_s: Bandwidth | None = Field(
        default=None,
        gt=0,
        description='Line rate of the worker\'s KV link: bytes per second or text such as "50 GB/s".',
    )
    bytes_per_token: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="KV bytes of one token over all GPUs behind a rank, where the engine does not say it."
    )
    model_config_path: Path | None = Field(
        default=None, description="Hugging Face config.json from which bytes per token follow, where neither is known."
    )
    kv_dtype: str | None = Field(
        default=None, description="KV data type for that config.json, for example bf16 or fp8_e4m3."
    )
    tp: int | None = Field(default=None, ge=1, le=1024, description="Tensor-parallel size for that config.json.")
    token_env: EnvironmentName | None = Field(
        default=None, description="Environment variable with this worker's bearer token; `auth.token_env` when absent."
    )
    is_draining: bool = Field(default=False, description="The worker takes no new requests: policies leave it out.")


class PollSettings(Section):
    """How workers are asked."""

    interval_s: Duration = Field(default=1.0, ge=0.1, le=3600, description="Seconds between two polls of a worker.")
    timeout_s: Duration = Field(
        default=5.0,
        gt=0,
        le=600,
        description="Longest wait for one answer; may exceed the interval: only that worker waits.",
    )
    connect_timeout_s: Duration = Field(default=2.0, gt=0, le=600, description="Longest wait for a connection.")
    metrics_interval_s: Duration | None = Field(
        default=None,
        ge=0,
        le=3600,
        description=(
            "Least seconds between two readings of a worker's /metrics beside its load API; 0: every poll. By default "
            "every poll up to 50 workers, then rarer in proportion to their number, at least every 15 s."
        ),
    )
    max_body_bytes: Size = Field(
        default=8 * 1024 * 1024, ge=1024, le=1024**3, description="Largest answer taken, after decompression."
    )
    jitter_ratio: Ratio = Field(
        default=0.6, description="Share of the interval over which the starts of a cycle are spread, fixed per worker."
    )
    max_open_connections: int = Field(
        default=4096,
        ge=1,
        le=65536,
        description="Connections open at once over all workers; a worker uses one.",
    )
    process: ProcessMode = Field(
        default=ProcessMode.AUTO, description="thread, child, or auto: a child process beyond `child_above_workers`."
    )
    child_above_workers: int = Field(
        default=200, ge=0, description="Workers above which `auto` polls in a child process."
    )


class FreshnessSettings(Section):
    """When a figure is no longer trusted."""

    late_after_s: Duration = Field(
        default=3.0, gt=0, description="Age from which a figure is late: drawn so, still scored."
    )
    stale_after_s: Duration = Field(
        default=10.0, gt=0, description="Age from which a figure is stale: no longer scored."
    )
    down_after_failures: int = Field(
        default=3, ge=1, le=1000, description="Failed polls in a row that make a worker down."
    )
    frozen_after_polls: int = Field(
        default=5, ge=2, le=1000, description="Polls without any change while requests wait that make figures frozen."
    )


class AuthSettings(Section):
    """What we show to workers."""

    token_env: EnvironmentName | None = Field(
        default=None, description="Environment variable with the bearer token for all workers. Never the token itself."
    )


class TlsSettings(Section):
    """How https:// workers are verified."""

    verify: bool = Field(default=True, description="Verify the worker's certificate.")
    ca_file: Path | None = Field(default=None, description="PEM file of authorities to trust instead of the system's.")
    client_cert_file: Path | None = Field(default=None, description="PEM file of our certificate, for mutual TLS.")
    client_key_file: Path | None = Field(
        default=None, description="PEM file of its key, where not in the certificate's file."
    )
    server_name: str | None = Field(default=None, description="Name to expect in the certificate instead of the host.")


class StoreSettings(Section):
    """Where readings are kept and for how long."""

    path: Path = Field(default=Path("kvscope.duckdb"), description="DuckDB file; relative to the fleet file.")
    retention_raw_s: Duration = Field(
        default=90000.0, ge=1200, description="Age at which raw readings are deleted; at least 20 minutes."
    )
    retention_10s_s: Duration = Field(
        default=7 * 86400.0, gt=0, description="Age at which 10-second rollups are deleted."
    )
    retention_1min_s: Duration = Field(
        default=30 * 86400.0, gt=0, description="Age at which 1-minute rollups are deleted."
    )
    retention_10min_s: Duration = Field(
        default=365 * 86400.0, gt=0, description="Age at which 10-minute rollups are deleted."
    )
    retention_polls_s: Duration = Field(
        default=7 * 86400.0, gt=0, description="Age at which poll outcomes and cycles are deleted."
    )
    retention_events_s: Duration = Field(
        default=90 * 86400.0, gt=0, description="Age at which findings, events and alerts are deleted."
    )
    lock_wait_s: Duration = Field(
        default=3.0, ge=0, le=600, description="How long to wait at the start while another process holds the file."
    )


class ViewSettings(Section):
    """What pages keep at hand."""

    refresh_s: Duration = Field(
        default=2.0, ge=0.2, le=600, description="Seconds between two refreshes of a live page."
    )
    history_s: Duration = Field(
        default=900.0, ge=10, le=86400, description="Recent past kept in memory for live pages."
    )
    history_max_bytes: Size = Field(
        default=256 * 1024**2, ge=1024**2, description="Memory for it; with very many pools the kept past gets shorter."
    )
    rate_window_s: Duration = Field(default=30.0, gt=0, le=3600, description="Window over which rates are taken.")


class WeightSettings(Section):
    """Weights of the pair cost, w1 to w7 of the cost formula."""

    prefill_wait: Weight = Field(default=1.0, description="w1: waiting before prefill.")
    prefill_compute: Weight = Field(default=1.0, description="w2: computing the prompt.")
    transfer: Weight = Field(default=1.0, description="w3: moving the KV.")
    decode_wait: Weight = Field(default=1.0, description="w4: waiting for decode.")
    kv_pressure: Weight = Field(default=1.0, description="w5: how full the decode pool will be.")
    slo_risk: Weight = Field(default=1.0, description="w6: chance of breaking the class's SLO.")
    prefix_benefit: Weight = Field(default=1.0, description="w7: what a prefix hit saves.")

    @property
    def vector(self) -> tuple[float, float, float, float, float, float, float]:
        """Return (w1, ..., w7)."""
        return (
            self.prefill_wait,
            self.prefill_compute,
            self.transfer,
            self.decode_wait,
            self.kv_pressure,
            self.slo_risk,
            self.prefix_benefit,
        )


class SloClassSettings(Section):
    """One class of requests."""

    ttft_budget_s: Duration = Field(default=2.0, gt=0, description="Time to first token the class promises.")
    tpot_budget_s: Duration = Field(default=0.05, gt=0, description="Time per output token the class promises.")
    output_quantile_ratio: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.9, description="Quantile of output length that admission reserves for."
    )
    weights: WeightSettings = Field(default_factory=WeightSettings, description="Weights of the pair cost.")


_CLASS_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "interactive": {"ttft_budget_s": 1.0, "output_quantile_ratio": 0.95, "weights": {"slo_risk": 2.0}},
    "batch": {
        "ttft_budget_s": 30.0,
        "tpot_budget_s": 0.2,
        "output_quantile_ratio": 0.8,
        "weights": {"kv_pressure": 0.5},
    },
    "long_context": {"ttft_budget_s": 15.0, "tpot_budget_s": 0.08, "weights": {"kv_pressure": 2.0}},
}


class SloSettings(Section):
    """The classes of requests with their budgets and weights."""

    interactive: SloClassSettings = Field(
        default_factory=lambda: SloClassSettings.model_validate(_CLASS_DEFAULTS["interactive"]),
        description="People wait for the first token.",
    )
    batch: SloClassSettings = Field(
        default_factory=lambda: SloClassSettings.model_validate(_CLASS_DEFAULTS["batch"]),
        description="Throughput counts, nobody waits.",
    )
    long_context: SloClassSettings = Field(
        default_factory=lambda: SloClassSettings.model_validate(_CLASS_DEFAULTS["long_context"]),
        description="Prompts of tens of thousands of tokens.",
    )

    @model_validator(mode="before")
    @classmethod
    def _keep_the_rest(cls, given: Any) -> Any:
        """Let a class that states some keys keep its own defaults for the others."""
        if not isinstance(given, dict):
            return given
        return {name: _over(_CLASS_DEFAULTS.get(name, {}), value) for name, value in given.items()}


def _over(defaults: Mapping[str, Any], given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    return {**defaults, **{key: _over(defaults.get(key, {}), value) for key, value in given.items()}}


class ReserveSettings(Section):
    """The safety reserve that admission keeps: each part is shown on its own."""

    growth_quantile_ratio: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.95, description="Quantile of growth during the delays that the reserve covers."
    )
    telemetry_delay_s: Duration | None = Field(
        default=None, ge=0, description="Delay of figures to cover; the measured age of each pool when absent."
    )
    decision_delay_s: Duration = Field(default=0.1, ge=0, description="Time from a decision to its effect.")
    failure_count: int = Field(
        default=1, ge=0, le=64, description="Largest peers whose death a pool must be able to inherit."
    )
    error_buffer_ratio: Ratio = Field(default=0.02, description="Share of usable kept for errors of prediction.")


class LeaseSettings(Section):
    """How long a promise of room holds."""

    ttl_s: Duration = Field(default=30.0, gt=0, le=3600, description="Seconds until an unconfirmed lease expires.")


class LinkSettings(Section):
    """One path of KV hand-over."""

    source: str = Field(default="*", description="Worker name of the prefill end, or *.")
    target: str = Field(default="*", description="Worker name of the decode end, or *.")
    bandwidth_bytes_per_s: Bandwidth | None = Field(
        default=None, gt=0, description='Line rate: bytes per second or text such as "400 Gbit/s".'
    )
    latency_s: Duration = Field(default=0.0, ge=0, le=60, description="Fixed cost of one transfer.")


class DiscoverySettings(Section):
    """Lists of workers that are read while running, beside the static one."""

    refresh_s: Duration = Field(default=30.0, ge=1, le=86400, description="Seconds between two readings of every list.")
    sglang_router: tuple[BaseUrl, ...] = Field(
        default=(), description="SGLang routers whose /workers name the workers."
    )
    file_sd: tuple[Path, ...] = Field(
        default=(), description="Prometheus file_sd JSON files; `*` in the name is a pattern."
    )
    http_sd: tuple[HttpUrl, ...] = Field(default=(), description="Prometheus http_sd addresses.")
    token_env: EnvironmentName | None = Field(
        default=None, description="Environment variable with the bearer token for routers and http_sd."
    )
    is_router_watched: bool = Field(
        default=True, description="Poll each router too, to set its view beside the engines'."
    )

    @property
    def has_lists(self) -> bool:
        """Say whether any list is to be read."""
        return bool(self.sglang_router or self.file_sd or self.http_sd)


class PrometheusSettings(Section):
    """A Prometheus-compatible server as the source of workers that it already scrapes."""

    url: BaseUrl = Field(description="Base address of the server.")
    matchers: tuple[str, ...] = Field(
        default=(), description='Label matchers that choose the workers, e.g. job="sglang".'
    )
    interval_s: Duration = Field(
        default=15.0, ge=1, le=3600, description="Seconds between two queries: its scrape interval."
    )
    token_env: EnvironmentName | None = Field(default=None, description="Environment variable with its bearer token.")


class AlertSettings(Section):
    """Who is told when a rule fires."""

    webhook_url: HttpUrl | None = Field(default=None, description="Receiver of a JSON document for each alert group.")
    webhook_url_env: EnvironmentName | None = Field(
        default=None,
        description="Environment variable with the receiver's address, where the address itself is a secret.",
    )
    webhook_token_env: EnvironmentName | None = Field(
        default=None, description="Environment variable with its bearer token."
    )
    alertmanager_url: BaseUrl | None = Field(default=None, description="Alertmanager whose v2 API takes the alerts.")
    public_url: HttpUrl | None = Field(
        default=None, description="Address of this dashboard as receivers reach it, for links."
    )
    rules: tuple[dict[str, Any], ...] = Field(default=(), description="Rules: tables with at least a unique `name`.")


class ServerSettings(Section):
    """How the dashboard is served."""

    address: str = Field(default="127.0.0.1", description="Address to listen on; the outside only with `token_env`.")
    port: int = Field(default=8501, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    token_env: EnvironmentName | None = Field(
        default=None, description="Environment variable with the token viewers need."
    )
    is_url_test_on: bool = Field(
        default=False, description="Offer the form that tests a worker's address from this server."
    )
    url_test_networks: tuple[Network, ...] = Field(
        default=(), description="Networks the form may reach; none by default."
    )


class Settings(Section):
    """Everything a fleet file can say. `Settings()` is a valid fleet of no workers."""

    workers: tuple[WorkerSettings, ...] = Field(default=(), description="Static list of workers.")
    poll: PollSettings = Field(default_factory=PollSettings, description="How workers are asked.")
    freshness: FreshnessSettings = Field(default_factory=FreshnessSettings, description="When figures are old.")
    auth: AuthSettings = Field(default_factory=AuthSettings, description="What we show to workers.")
    tls: TlsSettings = Field(default_factory=TlsSettings, description="How https workers are verified.")
    store: StoreSettings = Field(default_factory=StoreSettings, description="Where readings are kept.")
    view: ViewSettings = Field(default_factory=ViewSettings, description="What pages keep at hand.")
    slo: SloSettings = Field(default_factory=SloSettings, description="Classes of requests.")
    reserve: ReserveSettings = Field(default_factory=ReserveSettings, description="The safety reserve.")
    lease: LeaseSettings = Field(default_factory=LeaseSettings, description="How long promises hold.")
    links: tuple[LinkSettings, ...] = Field(default=(), description="Paths of KV hand-over; the most exact counts.")
    discovery: DiscoverySettings = Field(default_factory=DiscoverySettings, description="Lists read while running.")
    prometheus: PrometheusSettings | None = Field(
        default=None, description="A server that already scrapes the workers."
    )
    alerts: AlertSettings = Field(default_factory=AlertSettings, description="Who is told.")
    server: ServerSettings = Field(default_factory=ServerSettings, description="How the dashboard is served.")
