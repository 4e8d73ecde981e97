"""Addresses of workers: what may be shown or stored of one, and the name that follows from it."""

from urllib.parse import urlsplit, urlunsplit


def safe_url(url: str) -> str:
    """Return `url` without user name, password, query and fragment: what may be shown, logged and stored."""
    try:
        parts = urlsplit(url)
        netloc = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, netloc, parts.path, "", ""))
    except ValueError:
        return "(not an address)"


def split_rank(url: str) -> tuple[str, int | None]:
    """
    Return a router's worker address without its `@rank` suffix, and the rank.

    A DP-aware SGLang router registers `http://host:port@3`; the part after the last @ is a rank only when it is a
    number at the very end, so a user name in an address is not taken for one.
    """
    head, at, tail = url.rpartition("@")
    if at and tail.isdigit() and len(tail) <= 6 and "://" in head:
        return head, int(tail)
    return url, None


def base_url(url: str) -> str:
    """Return scheme://host[:port][/path] of `url`, lower-case host, default port dropped, no trailing slash."""
    parts = urlsplit(split_rank(url)[0])
    scheme = parts.scheme.lower()
    host = (parts.hostname or "").lower()
    if scheme not in ("http", "https") or not host or any(sign.isspace() for sign in url.strip()):
        raise ValueError(f"not an http address: {safe_url(url)}")
    port = parts.port
    if port == 0:
        raise ValueError("port 0 is no port to connect to")
    if port == (443 if scheme == "https" else 80):
        port = None
    shown = f"[{host}]" if ":" in host else host
    netloc = shown if port is None else f"{shown}:{port}"
    return urlunsplit((scheme, netloc, parts.path.rstrip("/"), "", ""))


def host_port(url: str) -> str:
    """Return host:port of `url` (and a path, if it has one, with `|` for each slash): the default worker name."""
    parts = urlsplit(base_url(url))
    return parts.netloc + parts.path.replace("/", "|")
