"""Real engines for the tests of this folder: started by the kit, watched once a module, always stopped."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.peers.kit import Kit
from tests.peers.seen import Seen

Watch = Callable[[Kit, Path], None]


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    """Return the kit with an ENGINES_DIR of its own; whatever it started is stopped at the end."""
    made = Kit(tmp_path_factory.mktemp("engines"))
    yield made
    made.down()


@pytest.fixture(scope="session")
def seen_of(kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Watch], Seen]:
    """
    Return the maker of a watch: run `watch(kit, folder)` once a session and read what it left.

    With KVSCOPE_PEER_RUNS the folder is kept there under its name, and a run that is there already is judged again.
    """

    made: dict[str, Seen] = {}

    def see(name: str, watch: Watch) -> Seen:
        if name not in made:
            made[name] = see_once(name, watch)
        return made[name]

    def see_once(name: str, watch: Watch) -> Seen:
        kept = os.environ.get("KVSCOPE_PEER_RUNS")
        folder = Path(kept) / name if kept else tmp_path_factory.mktemp(name)
        if not (folder / "sources.json").is_file():
            try:
                watch(kit, folder)
            finally:
                kit.down()
        return Seen(folder)

    return see
