"""
A fleet file -> `Settings`, or one `SettingsError` with every problem, each with its place and its fix.

Three passes, all of them always run as far as the ones before allow: TOML, shape and ranges (pydantic), then what
only holds between keys, on disk and in the environment. No message repeats a value that could be a secret.
"""

import difflib
import itertools
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from collectors.addresses import host_port
from collectors.errors import SettingsError
from collectors.settings.geometry import configured_bytes_per_token
from collectors.settings.model import Section, Settings, WorkerSettings
from collectors.settings.places import KeyPath, key_lines, line_of, path_text

FLEET_ENVIRONMENT_NAME: Final = "KVSCOPE_FLEET"
_SECRET_KEYS: Final = ("token", "api_key", "apikey", "password", "secret", "bearer", "authorization")
_LONGEST_VALUE: Final = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong: key path, and a sentence with its fix."""

    path: KeyPath
    text: str


def load_settings(
    path: Path | str, *, environment: Mapping[str, str] | None = None, engines: Iterable[str] | None = None
) -> Settings:
    """
    Read a fleet file.

    Args:
        path: The TOML file. Relative paths inside it are taken from its folder.
        environment: Where named variables are looked up; this process's environment when None.
        engines: Names a worker's `engine` may have; any when None.

    Raises:
        SettingsError: With every problem of the file.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SettingsError([f"{file}: no such file; write one (examples/fleet.toml shows every key)"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError([f"{file}: cannot be read ({error}); it must be a UTF-8 text you may read"]) from None
    return parse_settings(text, folder=file.resolve().parent, name=str(file), environment=environment, engines=engines)


def parse_settings(
    text: str,
    *,
    folder: Path,
    name: str = "fleet.toml",
    environment: Mapping[str, str] | None = None,
    engines: Iterable[str] | None = None,
) -> Settings:
    """Read the text of a fleet file; see `load_settings`. `name` is what messages call it."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError([f"{name}: is not valid TOML: {error}"]) from None
    lines = key_lines(text)
    problems: list[Problem] = []
    settings: Settings | None = None
    try:
        settings = Settings.model_validate(document)
    except ValidationError as error:
        problems.extend(_explain(error, document))
        settings = _salvage(document, error)
    if settings is not None:
        settings = _with_paths(settings, folder)
        variables = os.environ if environment is None else environment
        known = {problem.path for problem in problems}
        for problem in _between(settings, variables, None if engines is None else tuple(engines)):
            # A key replaced by its default after a problem of its own is not blamed a second time.
            if all(problem.path[: len(path)] != path for path in known):
                problems += [problem]
    if problems or settings is None:
        ordered = sorted(problems, key=lambda problem: line_of(problem.path, lines) or 0)
        raise SettingsError([_sentence(name, problem, lines) for problem in ordered])
    return settings


def _sentence(name: str, problem: Problem, lines: Mapping[KeyPath, int]) -> str:
    line = line_of(problem.path, lines)
    place = name if line is None else f"{name}:{line}"
    return f"{place}: {path_text(problem.path)} {problem.text}" if problem.path else f"{place}: {problem.text}"


def _explain(error: ValidationError, document: Mapping[str, Any]) -> Iterator[Problem]:
    for item in error.errors(include_url=False, include_context=True):
        path = _path_in(item["loc"], document)
        kind = item["type"]
        if kind == "extra_forbidden":
            yield Problem(path, _unknown_key(path))
        elif kind == "missing":
            yield Problem(path, "is missing; add it")
        elif kind == "value_error":
            yield Problem(path, str(item["ctx"]["error"]))
        elif kind in ("model_type", "dict_type", "model_attributes_type"):
            yield Problem(path, f"must be a table, as in [{path_text(path)}]")
        elif kind in ("tuple_type", "list_type"):
            yield Problem(path, 'must be a list, as in ["a", "b"] (or [[tables]])')
        else:
            yield Problem(
                path, f"{_shown(path, item['input'])}is not right: {item['msg'][:1].lower()}{item['msg'][1:]}"
            )


def _path_in(loc: tuple[int | str, ...], document: Any) -> KeyPath:
    """Return the part of pydantic's location that exists in the document or is a key to be added to it."""
    path: KeyPath = ()
    here = document
    for part in loc:
        if isinstance(here, Mapping) and isinstance(part, str):
            path = (*path, part)
            if part not in here:
                break
            here = here[part]
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            path = (*path, part)
            here = here[part]
        else:
            break
    return path


def _shown(path: KeyPath, value: object) -> str:
    if _is_secret_key(path) or isinstance(value, Mapping | list):
        return ""
    text = repr(value)
    return f"= {text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + '...'} "


def _is_secret_key(path: KeyPath) -> bool:
    key = str(path[-1]).lower() if path else ""
    return any(word in key for word in _SECRET_KEYS) or key.endswith("url")


def _section_at(path: KeyPath) -> type[Section] | None:
    """Return the section whose keys `path`'s last part is one of."""
    here: Any = Settings
    for part in path[:-1]:
        if isinstance(part, int):
            continue
        field = here.model_fields.get(part) if isinstance(here, type) and issubclass(here, Section) else None
        if field is None:
            return None
        here = _section_in(field.annotation)
    return here if isinstance(here, type) and issubclass(here, Section) else None


def _section_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _section_in(argument)
        if found is not None:
            return found
    return None


def _unknown_key(path: KeyPath) -> str:
    key = str(path[-1])
    section = _section_at(path)
    names = list(section.model_fields) if section else []
    if any(word == key.lower() for word in _SECRET_KEYS):
        return "is refused: secrets do not belong in the file; write token_env = the NAME of an environment variable"
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    if not near and key:
        near = [name for name in names if name.startswith(key) or name.removesuffix("_s") == key][:1]
    hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(names)}" if names else "remove it"
    return f"is not a key of the fleet file; {hint}"


def _salvage(document: dict[str, Any], error: ValidationError) -> Settings | None:
    """Return settings without the wrong keys, so that the checks between keys still run; None when nothing is left."""
    wrong = {_path_in(item["loc"], document) for item in error.errors(include_url=False)}
    try:
        return Settings.model_validate(_without(document, (), wrong))
    except ValidationError:
        return None


def _without(node: Any, path: KeyPath, wrong: set[KeyPath]) -> Any:
    if isinstance(node, dict):
        if len(path) == 2 and path[0] == "workers" and (*path, "url") in wrong:
            # A worker without an address cannot be kept; a stand-in keeps its other keys checked and its index.
            node = {**node, "url": f"http://unreadable-{path[1]}.invalid"}
            wrong = wrong - {(*path, "url")}
        return {key: _without(value, (*path, key), wrong) for key, value in node.items() if (*path, key) not in wrong}
    if isinstance(node, list):
        return [
            _without(value, (*path, index), wrong) for index, value in enumerate(node) if (*path, index) not in wrong
        ]
    return node


def _with_paths(settings: Settings, folder: Path) -> Settings:
    """Return settings whose file paths are absolute, taken from `folder`."""

    def placed(path: Path | None) -> Path | None:
        return None if path is None else (folder / path.expanduser())

    tls = settings.tls.model_copy(
        update={key: placed(getattr(settings.tls, key)) for key in ("ca_file", "client_cert_file", "client_key_file")}
    )
    workers = tuple(
        worker.model_copy(update={"model_config_path": placed(worker.model_config_path)}) for worker in settings.workers
    )
    discovery = settings.discovery.model_copy(update={"file_sd": tuple(placed(p) for p in settings.discovery.file_sd)})
    store = settings.store.model_copy(update={"path": placed(settings.store.path)})
    return settings.model_copy(update={"tls": tls, "workers": workers, "discovery": discovery, "store": store})


def worker_name(worker: WorkerSettings) -> str:
    """Return the name a worker goes by: its own, else host:port of its address."""
    return worker.name or host_port(worker.url)


def _between(settings: Settings, environment: Mapping[str, str], engines: tuple[str, ...] | None) -> Iterator[Problem]:
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
        )
    if fresh.stale_after_s <= fresh.late_after_s:
        yield Problem(
            ("freshness", "stale_after_s"),
            f"= {fresh.stale_after_s:g} s must be more than late_after_s = {fresh.late_after_s:g} s",
        )
    if fresh.stale_after_s <= interval_s:
        yield Problem(
            ("freshness", "stale_after_s"),
            f"= {fresh.stale_after_s:g} s must be more than poll.interval_s = {interval_s:g} s",
        )
    if settings.lease.ttl_s <= interval_s:
        yield Problem(
            ("lease", "ttl_s"),
            f"= {settings.lease.ttl_s:g} s must be more than poll.interval_s = {interval_s:g} s, "
            "or a lease ends before telemetry can show it",
        )
    if settings.poll.connect_timeout_s > settings.poll.timeout_s:
        yield Problem(
            ("poll", "connect_timeout_s"),
            f"= {settings.poll.connect_timeout_s:g} s must not exceed poll.timeout_s = {settings.poll.timeout_s:g} s",
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
        )
    prometheus = settings.prometheus
    if prometheus is not None and fresh.stale_after_s <= prometheus.interval_s:
        yield Problem(
            ("freshness", "stale_after_s"),
            f"= {fresh.stale_after_s:g} s must be more than prometheus.interval_s = {prometheus.interval_s:g} s, "
            "or figures are stale before the next ones come",
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
    if settings.discovery.sglang_router or settings.discovery.file_sd or settings.discovery.http_sd:
        return  # Workers found while running have names this file cannot know.
    names = {worker_name(worker) for worker in settings.workers}
    for index, link in enumerate(settings.links):
        for end in ("source", "target"):
            value = getattr(link, end)
            if value != "*" and value not in names:
                near = difflib.get_close_matches(value, names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else "write a worker's name or *"
                yield Problem(("links", index, end), f"= {value!r} is no worker of this file; {hint}")


def _files(settings: Settings) -> Iterator[Problem]:
    for key in ("ca_file", "client_cert_file", "client_key_file"):
        path = getattr(settings.tls, key)
        if path is not None and not path.is_file():
            yield Problem(("tls", key), f"= {path}: no such file")
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
    seen: dict[str, int] = {}
    for index, rule in enumerate(settings.alerts.rules):
        name = rule.get("name")
        if not isinstance(name, str) or not name:
            yield Problem(("alerts", "rules", index), "needs a name (text)")
        elif name in seen:
            yield Problem(("alerts", "rules", index, "name"), f"= {name!r} is used by rules[{seen[name]}] already")
        else:
            seen[name] = index


def read_secret(name: str | None) -> str | None:
    """Return the value of the environment variable `name`; None when not named or not set. Never store or log it."""
    return os.environ.get(name) or None if name else None


def fleet_path_from_environment() -> Path | None:
    """Return the fleet file that `kvscope serve` handed to the app, or None when there is none."""
    value = os.environ.get(FLEET_ENVIRONMENT_NAME)
    return Path(value) if value else None


def hand_fleet_to_app(path: Path | None) -> None:
    """Leave the fleet file where the app of this process (or a child) finds it; None: there is none."""
    if path is None:
        os.environ.pop(FLEET_ENVIRONMENT_NAME, None)
    else:
        os.environ[FLEET_ENVIRONMENT_NAME] = str(path.resolve())
