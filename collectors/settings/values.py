"""What a single value of the fleet file may be: names, addresses, durations, sizes, and never a secret."""

import ipaddress
import re
from typing import Annotated, Final
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from collectors.settings.units import bandwidth_bytes_per_s, duration_s, size_bytes

_ENVIRONMENT_NAME: Final = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_TOKEN_SHAPES: Final = re.compile(r"^(sk-|sk_|hf_|ghp_|gho_|glpat-|xox[abp]-|eyJ|Bearer\b|Basic\b)")
_LONGEST_ENVIRONMENT_NAME: Final = 64


def looks_like_a_secret(text: str) -> bool:
    """Say whether `text` is rather a credential than the name of an environment variable."""
    if _TOKEN_SHAPES.match(text) or len(text) > _LONGEST_ENVIRONMENT_NAME:
        return True
    has_all = any(c.islower() for c in text) and any(c.isupper() for c in text) and any(c.isdigit() for c in text)
    is_long_hex = len(text) >= 24 and re.fullmatch(r"[0-9a-fA-F]+", text) is not None
    return (has_all and len(text) >= 16) or is_long_hex


def _environment_name(value: str) -> str:
    # The value is never repeated in the message: what looks like a token may be one.
    if looks_like_a_secret(value):
        raise ValueError(
            "looks like a token; keep tokens out of the file: write the NAME of an environment variable that holds it"
        )
    if not _ENVIRONMENT_NAME.match(value):
        raise ValueError(
            "is not the name of an environment variable (letters, digits and _, not starting with a digit)"
        )
    return value


def _http_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("is not an http:// or https:// address, for example http://10.0.0.5:30000")
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError("has a port that is not a number from 1 to 65535") from error
    if port == 0:
        raise ValueError("has port 0; write the port the server listens on")
    if parts.username is not None or parts.password is not None:
        raise ValueError("carries a user name or password; remove it and name an environment variable with token_env")
    if any(word in key.lower() for key, _ in parse_qsl(parts.query) for word in ("token", "key", "secret", "passw")):
        raise ValueError("carries a token in its query; remove it and name an environment variable with token_env")
    return value


def _base_url(value: str) -> str:
    parts = urlsplit(_http_url(value))
    if parts.query or parts.fragment:
        raise ValueError("has a query or fragment; write the worker's base address alone, the paths are the engine's")
    return value.rstrip("/")


def _name(value: str) -> str:
    if not value or len(value) > 120 or any(c in value for c in "/\\\n\r\t\0") or value.strip() != value:
        raise ValueError("is no usable name: 1 to 120 characters, no slash, no line break, no space at either end")
    return value


def _network(value: str) -> str:
    try:
        ipaddress.ip_network(value)
    except ValueError as error:
        raise ValueError(f'is not a network in CIDR form ({error}); for example "10.20.0.0/16"') from error
    return value


EnvironmentName = Annotated[str, AfterValidator(_environment_name)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
BaseUrl = Annotated[str, AfterValidator(_base_url)]
Name = Annotated[str, AfterValidator(_name)]
Network = Annotated[str, AfterValidator(_network)]
Duration = Annotated[float, BeforeValidator(duration_s)]
Size = Annotated[float, BeforeValidator(size_bytes)]
Bandwidth = Annotated[float, BeforeValidator(bandwidth_bytes_per_s)]
Weight = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
