"""
Who is to be polled: the static list, SGLang routers' `/workers`, Prometheus `file_sd` and `http_sd`, merged.

Lists are read again while running. A list that cannot be read keeps the workers it named last and is reported; a
worker that a readable list no longer names is marked vanished, not forgotten at once. An address never carries a
user name, password or query beyond this module.
"""

import asyncio
import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import httpx

from collectors.addresses import base_url, host_port, safe_url, split_rank
from collectors.errors import DiscoveryError
from collectors.exchange import Failure, ask
from collectors.settings import Settings, WorkerSettings, configured_bytes_per_token, read_secret, worker_name
from scoring.model import Role

STATIC: Final = "fleet file"
MAX_LIST_BYTES: Final = 16 * 1024 * 1024
VANISHED_KEPT_S: Final = 3600.0
_ROUTER_ROLES: Final = {"prefill": Role.PREFILL, "decode": Role.DECODE, "regular": Role.UNIFIED}
_LONGEST_LABEL: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """
    One worker to poll.

    Attributes:
        worker_id: Name on every page, unique.
        url: Base address, without rank suffix, credentials, query.
        role: What the fleet file or the router says; the engine's own word comes first, except over the fleet file's.
        is_role_set: The fleet file states the role, which then outranks the engine's word.
        engine: Dialect name, or "auto".
        labels: model, rack, zone, tenants (comma-joined), link_bandwidth_bytes_per_s, bytes_per_token, draining, own.
        source: Which list names it.
        token_env: Name of the variable with its bearer token; None for none.
        vanished_at_s: Since when no list names it any more; None while one does.
    """

    worker_id: str
    url: str
    role: Role = Role.UNKNOWN
    is_role_set: bool = False
    engine: str = "auto"
    labels: Mapping[str, str] = field(default_factory=dict)
    source: str = STATIC
    token_env: str | None = None
    vanished_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListReport:
    """
    What became of reading one list.

    Attributes:
        source: The list, for example `router http://10.0.0.1:30000`.
        at_s: When it was read last.
        worker_count: Workers it named when it was last readable.
        skipped_count: Entries that could not be used (gRPC workers, malformed rows).
        error: Why the last reading failed; "" when it did not.
    """

    source: str
    at_s: float
    worker_count: int = 0
    skipped_count: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    targets: tuple[Target, ...]
    skipped_count: int


class Discovery:
    """The merged list of workers, kept current by `refresh`."""

    def __init__(self, settings: Settings, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`transport` reads routers and http_sd; without one only the fleet file and file_sd are read."""
        self._settings = settings
        self._transport = transport
        self._found: dict[str, _Found] = {}
        self._reports: dict[str, ListReport] = {}
        self._vanished: dict[str, Target] = {}
        self._static = tuple(static_target(worker, settings) for worker in settings.workers)
        self._targets: tuple[Target, ...] = merge((self._static, self._routers()))

    @property
    def targets(self) -> tuple[Target, ...]:
        """Return workers to poll and workers that vanished within the last hour, ascending by name."""
        return self._targets

    @property
    def reports(self) -> tuple[ListReport, ...]:
        """Return one report a list, in the order of the fleet file."""
        return tuple(self._reports.values())

    async def refresh(self, at_s: float) -> tuple[Target, ...]:
        """Read every list again and return the merged targets; a list that fails is reported, never raised."""
        lists = self._lists()
        results = await asyncio.gather(*(self._read(kind, place) for kind, place in lists), return_exceptions=True)
        for (kind, place), result in zip(lists, results, strict=True):
            source = f"{kind} {place if kind == 'file_sd' else safe_url(place)}"
            before = self._found.get(source)
            if isinstance(result, _Found):
                self._found[source] = replace(
                    result, targets=tuple(replace(target, source=source) for target in result.targets)
                )
                self._reports[source] = ListReport(
                    source=source, at_s=at_s, worker_count=len(result.targets), skipped_count=result.skipped_count
                )
            elif isinstance(result, Exception):
                kept = len(before.targets) if before else 0
                text = str(result) if isinstance(result, DiscoveryError) else f"{type(result).__name__}: {result}"
                self._reports[source] = ListReport(
                    source=source, at_s=at_s, worker_count=kept, error=f"{text}; the last list is kept ({kept} workers)"
                )
            else:
                raise result
        self._merge(at_s)
        return self._targets

    def _merge(self, at_s: float) -> None:
        groups = (self._static, self._routers(), *(found.targets for found in self._found.values()))
        current = {target.worker_id: target for target in merge(groups)}
        for target in self._targets:
            if target.worker_id not in current and target.vanished_at_s is None:
                self._vanished[target.worker_id] = replace(target, vanished_at_s=at_s)
        self._vanished = {
            name: target
            for name, target in self._vanished.items()
            if name not in current and at_s - (target.vanished_at_s or at_s) < VANISHED_KEPT_S
        }
        both = {**self._vanished, **current}
        self._targets = tuple(both[name] for name in sorted(both))

    def _routers(self) -> tuple[Target, ...]:
        discovery = self._settings.discovery
        if not discovery.is_router_watched:
            return ()
        return tuple(
            Target(
                worker_id=f"router {host_port(url)}",
                url=base_url(url),
                labels={"kind": "router"},
                source="discovery.sglang_router",
                token_env=discovery.token_env or self._settings.auth.token_env,
            )
            for url in discovery.sglang_router
        )

    def _lists(self) -> list[tuple[str, str]]:
        discovery = self._settings.discovery
        lists = [("file_sd", str(path)) for path in discovery.file_sd]
        if self._transport is not None:
            lists += [("router", url) for url in discovery.sglang_router]
            lists += [("http_sd", url) for url in discovery.http_sd]
        return lists

    async def _read(self, kind: str, place: str) -> _Found:
        token_env = self._settings.auth.token_env
        if kind == "file_sd":
            return _scrape_groups(await asyncio.to_thread(_read_files, Path(place)), token_env)
        if kind == "http_sd":
            return _scrape_groups(await self._get(place), token_env)
        return router_targets(await self._router_list(place), token_env)

    async def _router_list(self, url: str) -> Any:
        try:
            return await self._get(url.rstrip("/") + "/workers")
        except DiscoveryError as error:
            # Routers before 0.3 have no /workers; all have the fan-out that names the workers.
            if "HTTP 404" not in str(error) and "HTTP 405" not in str(error):
                raise
            return await self._get(url.rstrip("/") + "/get_loads")

    async def _get(self, url: str) -> Any:
        if self._transport is None:
            raise DiscoveryError("no transport to read it with")
        token = read_secret(self._settings.discovery.token_env)
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "kvscope"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        poll = self._settings.poll
        timeout = {"connect": poll.connect_timeout_s, "read": poll.timeout_s, "write": poll.timeout_s, "pool": None}
        request = httpx.Request("GET", url, headers=headers, extensions={"timeout": timeout})
        deadline_at = asyncio.get_running_loop().time() + poll.timeout_s
        answer = await ask(self._transport, request, max_bytes=MAX_LIST_BYTES, deadline_at=deadline_at)
        shown = safe_url(url)
        if isinstance(answer, Failure):
            raise DiscoveryError(f"{shown} cannot be read ({answer.kind}: {answer.detail})")
        if answer.status != 200:
            raise DiscoveryError(f"{shown} answered HTTP {answer.status}")
        return _json(answer.body, shown)


def static_target(worker: WorkerSettings, settings: Settings) -> Target:
    """Return the target of one worker of the fleet file."""
    labels = dict(worker.labels)
    for key in ("model", "rack", "zone", "kv_dtype"):
        value = getattr(worker, key)
        if value is not None:
            labels[key] = value
    if worker.tenants is not None:
        labels["tenants"] = ",".join(worker.tenants)
    if worker.link_bandwidth_bytes_per_s is not None:
        labels["link_bandwidth_bytes_per_s"] = repr(worker.link_bandwidth_bytes_per_s)
    with contextlib.suppress(ValueError):  # The file was right when it was loaded; since then it is only unknown.
        bytes_per_token = configured_bytes_per_token(worker)
        if bytes_per_token is not None:
            labels["bytes_per_token"] = repr(bytes_per_token)
    if worker.is_draining:
        labels["draining"] = "true"
    return Target(
        worker_id=worker_name(worker),
        url=base_url(worker.url),
        role=worker.role or Role.UNKNOWN,
        is_role_set=worker.role is not None,
        engine=worker.engine,
        labels=labels,
        token_env=worker.token_env or settings.auth.token_env,
    )


def merge(groups: Iterable[Iterable[Target]]) -> tuple[Target, ...]:
    """
    Return one target an address, ascending by name; earlier groups win, later ones only fill what is unknown.

    A name that two addresses claim stays with the first; the second is called by host:port.
    """
    by_url: dict[str, Target] = {}
    for group in groups:
        for target in group:
            known = by_url.get(target.url)
            if known is None:
                by_url[target.url] = target
            else:
                by_url[target.url] = replace(
                    known,
                    role=known.role if known.role is not Role.UNKNOWN else target.role,
                    labels={**target.labels, **known.labels},
                )
    by_name: dict[str, Target] = {}
    for url, target in by_url.items():
        name = target.worker_id if target.worker_id not in by_name else host_port(url)
        by_name[name] = replace(target, worker_id=name)
    return tuple(by_name[name] for name in sorted(by_name))


def router_targets(document: Any, token_env: str | None) -> _Found:
    """
    Return the workers a router names: every `@rank` of one address folded into one worker.

    Understands `/workers` of the 0.3 and smg lines (objects with `url`, `dp_base_url`, `worker_type`), lists of plain
    addresses, and `/get_loads` (objects with `worker`). gRPC workers have no HTTP to poll and are counted as skipped.
    """
    rows = document
    if isinstance(document, Mapping):
        rows = next((document[key] for key in ("workers", "urls") if isinstance(document.get(key), list)), None)
    if not isinstance(rows, list):
        raise DiscoveryError("the router's answer holds no list of workers; is this the address of a router?")
    folded: dict[str, Target] = {}
    skipped = 0
    for row in rows:
        target = _router_target(row, token_env)
        if target is None:
            skipped += 1
            continue
        known = folded.get(target.url)
        if known is None:
            folded[target.url] = target
        elif known.role is not target.role:
            # Ranks of one worker that disagree about its role leave it to the engine's own word.
            folded[target.url] = replace(known, role=Role.UNKNOWN)
    return _Found(targets=tuple(folded.values()), skipped_count=skipped)


def _router_target(row: Any, token_env: str | None) -> Target | None:
    fields = row if isinstance(row, Mapping) else {"url": row}
    raw = next((fields[key] for key in ("dp_base_url", "url", "worker") if isinstance(fields.get(key), str)), None)
    if raw is None:
        return None
    try:
        url = base_url(split_rank(raw)[0])
    except ValueError:
        return None
    labels = {}
    model = fields.get("model_id")
    if isinstance(model, str) and model and model != "unknown":
        labels["model"] = model[:_LONGEST_LABEL]
    if fields.get("status") == "draining":
        labels["draining"] = "true"
    return Target(
        worker_id=host_port(url),
        url=url,
        role=_ROUTER_ROLES.get(str(fields.get("worker_type")), Role.UNKNOWN),
        labels=labels,
        token_env=token_env,
    )


def _read_files(path: Path) -> Any:
    """Return the groups of a file_sd file, or of all files a pattern names, one after the other."""
    files = sorted(path.parent.glob(path.name)) if "*" in path.name else [path]
    if not files:
        raise DiscoveryError(f"{path}: no file matches")
    groups: list[Any] = []
    for file in files:
        if file.suffix not in (".json", ""):
            raise DiscoveryError(f"{file}: only JSON file_sd files are read; convert it to .json")
        try:
            body = file.read_bytes()
        except OSError as error:
            raise DiscoveryError(f"{file}: cannot be read ({error.strerror})") from error
        document = _json(body, str(file))
        if not isinstance(document, list):
            raise DiscoveryError(f"{file}: is no list of target groups")
        groups += document
    return groups


def _json(body: bytes, shown: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DiscoveryError(f"{shown} is not JSON ({type(error).__name__})") from error


def _scrape_groups(document: Any, token_env: str | None) -> _Found:
    """
    Return the workers of Prometheus target groups: `[{"targets": ["host:port"], "labels": {...}}]`.

    Labels `role`, `engine` and `name` (for a group of one) are ours; `__scheme__` picks https; other labels that begin
    with `__` belong to Prometheus and are dropped.
    """
    if not isinstance(document, list):
        raise DiscoveryError('is no list of target groups, as in [{"targets": ["host:port"], "labels": {}}]')
    targets: list[Target] = []
    skipped = 0
    for group in document:
        names = group.get("targets") if isinstance(group, Mapping) else None
        if not isinstance(names, list):
            skipped += 1
            continue
        raw_labels = group.get("labels")
        labels = {
            str(key): str(value)[:_LONGEST_LABEL]
            for key, value in (raw_labels.items() if isinstance(raw_labels, Mapping) else ())
        }
        for name in names:
            try:
                targets.append(_scrape_target(name, labels, len(names) == 1, token_env))
            except ValueError:
                skipped += 1
    return _Found(targets=tuple(targets), skipped_count=skipped)


def _scrape_target(name: Any, labels: Mapping[str, str], is_alone: bool, token_env: str | None) -> Target:
    if not isinstance(name, str):
        raise ValueError("target: is not text")
    address = name if "://" in name else f"{labels.get('__scheme__', 'http')}://{name}"
    url = base_url(address)
    role = labels.get("role", "")
    own = {key: value for key, value in labels.items() if not key.startswith("__")}
    for key in ("role", "engine", "name"):
        own.pop(key, None)
    wanted = labels.get("name", "").replace("/", "|").strip()
    return Target(
        worker_id=wanted if wanted and is_alone else host_port(url),
        url=url,
        role=Role(role) if role in set(Role) else Role.UNKNOWN,
        is_role_set=role in set(Role) and role != Role.UNKNOWN,
        engine=labels.get("engine", "auto"),
        labels=own,
        token_env=token_env,
    )
