"""What only holds between keys, on disk and in the environment: checked after every single value is."""

import difflib
import itertools
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from collectors.addresses import host_port
from collectors.settings.geometry import configured_bytes_per_token
from collectors.settings.model import Settings, WorkerSettings
from collectors.settings.places import KeyPath


@dataclass(frozen=True, slots=True)
class Problem:
    """
    One thing wrong: key path, and a sentence with its fix.

    `other` is the key it clashes with, whose line is named when the file does not state the first one.
    """

    path: KeyPath
    text: str
    other: KeyPath = ()


def worker_name(worker: WorkerSettings) -> str:
    """Return the name a worker goes by: its own, else host:port of its address."""
    return worker.name or host_port(worker.url)


def problems_between(
    settings: Settings, environment: Mapping[str, str], engines: tuple[str, ...] | None
) -> Iterator[Problem]:
    checks: tuple[Callable[[], Iterator[Problem]], ...] = (
        lambda: _times(settings),
        lambda: _workers(settings, engines),
        lambda: _links(settings),
        lambda: _files(settings),
        lambda: _secrets(settings, environment),
        lambda: _server(settings),
        lambda: _alerts(settings),
    )
    for check in checks:
        yield from check()


def _times(settings: Settings) -> Iterator[Problem]:
    interval_s = settings.poll.interval_s
    fresh = settings.freshness
    if fresh.late_after_s <= interval_s:
        yield Problem(
            ("freshness", "late_after_s"),
            f"= {fresh.late_after_s:g} s must be more than poll.interval_s = {interval_s:g} s, or every figure is "
            f"late; about {3 * interval_s:g} is usual",
            other=("poll", "interval_s"),
        )
    if fresh.stale_after_s <= fresh.late_after_s:
        yield Problem(
            ("freshness", "stale_after_s"),
            f"= {fresh.stale_after_s:g} s must be more than late_after_s = {fresh.late_after_s:g} s",
            other=("freshness", "late_after_s"),
        )
    if fresh.stale_after_s <= interval_s:
        yield Problem(
            ("freshness", "stale_after_s"),
            f"= {fresh.stale_after_s:g} s must be more than poll.interval_s = {interval_s:g} s",
            other=("poll", "interval_s"),
        )
    if settings.lease.ttl_s <= interval_s:
        yield Problem(
            ("lease", "ttl_s"),
            f"= {settings.lease.ttl_s:g} s must be more than poll.interval_s = {interval_s:g} s, "
            "or a lease ends before telemetry can show it",
            other=("poll", "interval_s"),
        )
    if settings.poll.connect_timeout_s > settings.poll.timeout_s:
        yield Problem(
            ("poll", "connect_timeout_s"),
            f"= {settings.poll.connect_timeout_s:g} s must not exceed poll.timeout_s = {settings.poll.timeout_s:g} s",
            other=("poll", "timeout_s"),
        )
    if settings.view.history_s <= settings.view.rate_window_s:
        yield Problem(
            ("view", "history_s"),
            f"= {settings.view.history_s:g} s must be more than view.rate_window_s = {settings.view.rate_window_s:g} s",
        )
    if settings.view.rate_window_s < 2 * interval_s:
        yield Problem(
            ("view", "rate_window_s"),
            f"= {settings.view.rate_window_s:g} s must hold at least two polls ({interval_s:g} s apart)",
            other=("poll", "interval_s"),
        )
    prometheus = settings.prometheus
    if prometheus is not None and fresh.stale_after_s <= prometheus.interval_s:
        yield Problem(
            ("freshness", "stale_after_s"),
            f"= {fresh.stale_after_s:g} s must be more than prometheus.interval_s = {prometheus.interval_s:g} s, "
            "or figures are stale before the next ones come",
            other=("prometheus", "interval_s"),
        )
    tiers = ("retention_raw_s", "retention_10s_s", "retention_1min_s", "retention_10min_s")
    for finer, coarser in itertools.pairwise(tiers):
        if getattr(settings.store, coarser) < getattr(settings.store, finer):
            yield Problem(
                ("store", coarser),
                f"= {getattr(settings.store, coarser):g} s must not be less than {finer} = "
                f"{getattr(settings.store, finer):g} s: the coarser rollup is what remains",
            )


def _workers(settings: Settings, engines: tuple[str, ...] | None) -> Iterator[Problem]:
    names: dict[str, int] = {}
    urls: dict[str, int] = {}
    for index, worker in enumerate(settings.workers):
        name = worker_name(worker)
        if worker.url in urls:
            yield Problem(
                ("workers", index, "url"),
                f"is the address of workers[{urls[worker.url]}] already; list each worker once",
            )
        elif name in names:
            yield Problem(
                ("workers", index, "name"), f"{name!r} is the name of workers[{names[name]}] already; names are unique"
            )
        names.setdefault(name, index)
        urls.setdefault(worker.url, index)
        if engines and worker.engine != "auto" and worker.engine not in engines:
            near = difflib.get_close_matches(worker.engine, engines, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: auto, {', '.join(engines)}"
            yield Problem(("workers", index, "engine"), f"= {worker.engine!r} is not an engine we speak; {hint}")
        if worker.tenants is not None and not worker.tenants:
            yield Problem(
                ("workers", index, "tenants"), "is empty: no tenant could ever use the worker; remove it for everyone"
            )


def _links(settings: Settings) -> Iterator[Problem]:
    if settings.discovery.has_lists:
        return  # Workers found while running have names this file cannot know.
    names = {worker_name(worker) for worker in settings.workers}
    for index, link in enumerate(settings.links):
        for end in ("source", "target"):
            value = getattr(link, end)
            if value != "*" and value not in names:
                near = difflib.get_close_matches(value, names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else "write a worker's name or *"
                yield Problem(("links", index, end), f"= {value!r} is no worker of this file; {hint}")


def _certificates(settings: Settings) -> Iterator[Problem]:
    """Load the TLS files once: a file that is none of what it should be is found here, not at the first poll."""
    tls = settings.tls
    if tls.ca_file is not None and tls.ca_file.is_file():
        try:
            ssl.create_default_context(cafile=str(tls.ca_file))
        except (ssl.SSLError, OSError):
            yield Problem(("tls", "ca_file"), f"= {tls.ca_file}: holds no PEM certificate that can be read")
    key = tls.client_key_file
    if tls.client_cert_file is not None and tls.client_cert_file.is_file() and (key is None or key.is_file()):
        try:
            ssl.create_default_context().load_cert_chain(str(tls.client_cert_file), str(key) if key else None)
        except (ssl.SSLError, OSError):
            yield Problem(
                ("tls", "client_cert_file"),
                f"= {tls.client_cert_file}: does not hold a PEM certificate with its key (or client_key_file does not)",
            )


def _files(settings: Settings) -> Iterator[Problem]:
    for key in ("ca_file", "client_cert_file", "client_key_file"):
        path = getattr(settings.tls, key)
        if path is not None and not path.is_file():
            yield Problem(("tls", key), f"= {path}: no such file")
    yield from _certificates(settings)
    if settings.tls.client_key_file is not None and settings.tls.client_cert_file is None:
        yield Problem(("tls", "client_key_file"), "is set without client_cert_file; a key alone proves nothing")
    for index, worker in enumerate(settings.workers):
        try:
            configured_bytes_per_token(worker)
        except ValueError as error:
            yield Problem(("workers", index, "model_config_path"), str(error))
    if not settings.store.path.parent.is_dir():
        yield Problem(("store", "path"), f"= {settings.store.path}: the folder does not exist; make it")
    elif settings.store.path.is_dir():
        yield Problem(("store", "path"), f"= {settings.store.path}: is a folder; name a file in it")


def environment_names(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Yield (key path, variable name) for every secret the settings name."""
    places: list[tuple[KeyPath, str | None]] = [
        (("auth", "token_env"), settings.auth.token_env),
        (("discovery", "token_env"), settings.discovery.token_env),
        (("alerts", "webhook_url_env"), settings.alerts.webhook_url_env),
        (("alerts", "webhook_token_env"), settings.alerts.webhook_token_env),
        (("server", "token_env"), settings.server.token_env),
    ]
    if settings.prometheus is not None:
        places.append((("prometheus", "token_env"), settings.prometheus.token_env))
    places += [(("workers", i, "token_env"), worker.token_env) for i, worker in enumerate(settings.workers)]
    yield from ((path, name) for path, name in places if name is not None)


def _secrets(settings: Settings, environment: Mapping[str, str]) -> Iterator[Problem]:
    for path, name in environment_names(settings):
        value = environment.get(name)
        if not value:
            yield Problem(path, f"names the environment variable {name}, which is not set; set it before the start")
        elif any(ord(c) < 33 or ord(c) > 126 for c in value):
            yield Problem(path, f"names {name}, whose value holds a space, line break or non-ASCII character")


def _server(settings: Settings) -> Iterator[Problem]:
    server = settings.server
    if server.address not in ("127.0.0.1", "::1", "localhost") and server.token_env is None:
        yield Problem(
            ("server", "address"),
            f"= {server.address!r} is reachable from outside; set server.token_env too, or listen on 127.0.0.1 "
            "behind a proxy that asks for a login",
        )
    if server.is_url_test_on and not server.url_test_networks:
        yield Problem(
            ("server", "is_url_test_on"), "is on without url_test_networks; list the networks the form may reach"
        )


def _alerts(settings: Settings) -> Iterator[Problem]:
    if settings.alerts.webhook_url is not None and settings.alerts.webhook_url_env is not None:
        yield Problem(("alerts", "webhook_url_env"), "is set beside webhook_url; keep one of the two")
    seen: dict[str, int] = {}
    for index, rule in enumerate(settings.alerts.rules):
        name = rule.get("name")
        if not isinstance(name, str) or not name:
            yield Problem(("alerts", "rules", index), "needs a name (text)")
        elif name in seen:
            yield Problem(("alerts", "rules", index, "name"), f"= {name!r} is used by rules[{seen[name]}] already")
        else:
            seen[name] = index
