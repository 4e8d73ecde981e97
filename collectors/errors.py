"""
What can go wrong between KVScope and the outside world, as one tree.

    KvscopeError                 every error we raise on purpose; its text is a sentence for the user
    ├── SettingsError            the fleet file is wrong: every problem at once, each with its place and its fix
    ├── DiscoveryError           a list of workers (router, file_sd, http_sd) could not be read
    ├── DeliveryError            an alert could not be handed to its receiver
    └── StoreError               the store refused; the text says what to do next
        ├── StoreLockedError     another process owns the file; carries its PID where known
        ├── StoreVersionError    the file was written by another version of KVScope, or is no store of ours
        ├── StoreReadOnlyError   a write through a store that was opened to read
        └── StoreTimeoutError    a read took longer than it may

A command prints the text and ends non-zero, without a traceback; a page draws it as its error state. A failed
poll is no exception at all: it is a `PollOutcome` in the store.
"""

from collections.abc import Sequence


class KvscopeError(Exception):
    """An error raised on purpose; `str()` of it is a sentence that says what happened and what to do."""


class SettingsError(KvscopeError):
    """
    The configuration is wrong.

    Attributes:
        problems: One sentence a problem, each with its place in the file and its fix. Never empty.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        if not problems:
            raise ValueError("problems: a SettingsError without a problem says nothing")
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class DiscoveryError(KvscopeError):
    """A list of workers could not be read or understood."""


class DeliveryError(KvscopeError):
    """An alert could not be handed to its receiver."""


class StoreError(KvscopeError):
    """The store could not do what was asked."""


class StoreLockedError(StoreError):
    """
    Another process owns the file: DuckDB lets one process in while any of them writes.

    Attributes:
        holder_pid: Process that holds the file, or None when the system did not say.
    """

    def __init__(self, text: str, holder_pid: int | None = None) -> None:
        self.holder_pid = holder_pid
        super().__init__(text)


class StoreVersionError(StoreError):
    """The file is no store of ours, or was written by a newer KVScope, or needs an upgrade it may not get here."""


class StoreReadOnlyError(StoreError):
    """A write was asked of a store that was opened with `read_only=True`."""


class StoreTimeoutError(StoreError):
    """A read was stopped because it took longer than a reader may."""
