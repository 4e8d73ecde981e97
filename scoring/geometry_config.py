"""
Read a Hugging Face config.json with care: nested text models, keys under several names, and values that lie.

Every complaint is a `GeometryError` that names the key, so that a reader of `kvscope geometry` knows what to mend.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_LAYERS = 10_000
MOST_HEADS = 100_000
MOST_DIM = 1_000_000
"""Far above any model made; a figure beyond is a mistake in the file."""

NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "language_model_config", "decoder")
"""Where multimodal models keep the language model."""

LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


class GeometryError(ValueError):
    """
    The configuration does not say how much KV a token takes.

    Attributes:
        key: The key that is missing or wrong.
    """

    def __init__(self, key: str, text: str) -> None:
        """Name the key and say what is wrong with it."""
        super().__init__(text)
        self.key = key


@dataclass(frozen=True, slots=True)
class Config:
    """The language model's part of a configuration, read key by key."""

    values: Mapping[str, Any]
    outer: Mapping[str, Any]

    @classmethod
    def of(cls, config: object) -> "Config":
        """Return a reader of `config`, of its nested text model where there is one."""
        if not isinstance(config, Mapping):
            raise GeometryError("config", f"a config.json is an object with keys, this is a {_kind(config)}")
        inner: Mapping[str, Any] = config
        for _ in range(4):  # thinker_config.text_config is the deepest seen; a bound keeps a hostile file finite.
            if any(inner.get(key) is not None for key in LAYER_KEYS):
                break
            nested = next((inner[key] for key in NESTED if isinstance(inner.get(key), Mapping)), None)
            if nested is None:
                break
            inner = nested
        return cls(inner, config)

    @property
    def model_type(self) -> str:
        """The model family's own word, "" when the file does not say."""
        word = self.values.get("model_type") or self.outer.get("model_type")
        return word if isinstance(word, str) else ""

    def has(self, key: str) -> bool:
        """Say whether the key is there with a value that is not null."""
        return self.values.get(key) is not None

    def count(self, *keys: str, most: int = MOST_DIM, least: int = 1) -> int | None:
        """Return the first of `keys` that is there as a whole number within bounds; None when none is."""
        for key in keys:
            value = self.values.get(key)
            if value is not None:
                return whole(key, value, most=most, least=least)
        return None

    def need(self, *keys: str, most: int = MOST_DIM, least: int = 1) -> int:
        """Return the first of `keys` as a whole number; GeometryError naming the first when none is there."""
        found = self.count(*keys, most=most, least=least)
        if found is None:
            others = f" (or {', '.join(keys[1:])})" if len(keys) > 1 else ""
            raise GeometryError(keys[0], f"the configuration lacks `{keys[0]}`{others}")
        return found

    def flag(self, key: str) -> bool | None:
        """Return a true or false of the file, None when absent."""
        value = self.values.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise GeometryError(key, f"`{key}` must be true or false, not {_show(value)}")

    def row(self, key: str, length: int | None = None) -> list[Any] | None:
        """Return a list of the file, None when absent; GeometryError when its length is not `length`."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise GeometryError(key, f"`{key}` must be a list, not {_show(value)}")
        if length is not None and len(value) != length:
            raise GeometryError(key, f"`{key}` has {len(value)} entries for {length} layers")
        return list(value)

    def part(self, key: str) -> "Config | None":
        """Return a nested object as a reader of its own, None when absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise GeometryError(key, f"`{key}` must be an object, not {_show(value)}")
        return Config(value, self.outer)


def whole(key: str, value: object, *, most: int, least: int = 1) -> int:
    """Return `value` as a whole number in least .. most; GeometryError that names `key` otherwise."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise GeometryError(key, f"`{key}` must be a whole number, not {_show(value)}")
    if not least <= value <= most:
        raise GeometryError(key, f"`{key}` = {_show(value)} is out of range {least} .. {most:,}")
    return value


def _show(value: object) -> str:
    return f"a {_kind(value)}" if isinstance(value, (Mapping, list)) else repr(value)[:80]


def _kind(value: object) -> str:
    names = {list: "list", dict: "object", str: "text", bool: "true/false", type(None): "null"}
    return names.get(type(value), type(value).__name__)
