"""
Composition root of the dashboard: settings -> running collector -> pages, and the routes beside them.

The file plays both parts: imported by a server it makes `app` (works under `kvscope serve`, `streamlit run app.py`,
`uvicorn app:app`), run as a page script it draws. Streamlit loads it twice, as `app` and as `__main__`, so nothing
is kept here: the collector lives in `collectors.runtime`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import streamlit as st
from starlette.concurrency import run_in_threadpool
from streamlit.runtime.pages_manager import PagesManager
from streamlit.runtime.scriptrunner import get_script_run_ctx

from collectors import calibration
from pages import _routes, _running, _shell

# Every page in the order of the navigation, (word, icon): pages/<word>.py. A new page is one more line.
PAGES = (
    ("home", ":material/home:"),
    ("fleet", ":material/dashboard:"),
    ("worker", ":material/memory:"),
    ("saturation", ":material/water_drop:"),
    ("what_if", ":material/alt_route:"),
    ("calibration", ":material/tune:"),
    ("replay", ":material/replay:"),
    ("sources", ":material/cable:"),
    ("tour", ":material/slideshow:"),
    ("glossary", ":material/menu_book:"),
)


@asynccontextmanager
async def lifespan(_: st.App) -> AsyncIterator[dict[str, object]]:
    """Collect while the server lives."""
    # Else a deep link that arrives before any other visit would run pages/<word>.py alone, without this file.
    PagesManager.uses_pages_directory = False
    await run_in_threadpool(_running.start)
    await run_in_threadpool(calibration.calibrator)
    try:
        yield {}
    finally:
        await run_in_threadpool(calibration.stop_learning)
        await run_in_threadpool(_running.stop)


if get_script_run_ctx(suppress_warning=True) is not None:
    _shell.render(PAGES)
else:
    app = st.App(
        __file__,
        lifespan=lifespan,
        routes=_routes.routes(),
        middleware=_routes.middleware(_running.viewer_token),
    )
    if __name__ == "__main__":
        app.run()
