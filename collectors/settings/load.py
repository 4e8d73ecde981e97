"""
A fleet file -> `Settings`, or one `SettingsError` with every problem, each with its place and its fix.

Three passes, all of them always run as far as the ones before allow: TOML, shape and ranges (pydantic), then what
only holds between keys, on disk and in the environment. No message repeats a value that could be a secret.
"""

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from collectors.errors import SettingsError
from collectors.settings.checks import Problem, problems_between
from collectors.settings.model import Section, Settings
from collectors.settings.places import KeyPath, key_lines, line_of, path_text

FLEET_ENVIRONMENT_NAME: Final = "KVSCOPE_FLEET"
_SECRET_KEYS: Final = ("token", "api_key", "apikey", "password", "secret", "bearer", "authorization")
_LONGEST_VALUE: Final = 60


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
        for problem in problems_between(settings, variables, None if engines is None else tuple(engines)):
            # A key replaced by its default after a problem of its own is not blamed a second time.
            if all(problem.path[: len(path)] != path for path in known):
                problems += [problem]
    if problems or settings is None:
        ordered = sorted(problems, key=lambda problem: _line(problem, lines) or 0)
        raise SettingsError([_sentence(name, problem, lines) for problem in ordered])
    return settings


def _line(problem: Problem, lines: Mapping[KeyPath, int]) -> int | None:
    exact = line_of(problem.path, lines)
    return exact if exact is not None or not problem.other else line_of(problem.other, lines)


def _sentence(name: str, problem: Problem, lines: Mapping[KeyPath, int]) -> str:
    line = _line(problem, lines)
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
