"""
The live figure: a small component around `Plotly.react` that keeps zoom, legend and selection at every tick.

`st.plotly_chart` is remounted at each change of its data, so it cannot hold a zoom over live figures. Here a page
builds a plain dict (`{"data": [...], "layout": {...}}`), `pack` turns it into bytes once per tick for all viewers,
and `pages._context.draw` mounts it. Colours written as `@name` (or `@name/0.4` with opacity) become the hue of the
viewer's theme in the browser. No Streamlit in here: the script and the packing are data.
"""

import base64
from typing import Any, Final

import msgspec
import numpy as np
import plotly
from numpy.typing import NDArray

from pages.figures.theme import palette

ASSET_PATH: Final = f"assets/plotly-{plotly.__version__}.min.js"
"""Where the server serves plotly.js from, relative to the pages; the version makes it cacheable for good."""

_KINDS = {"float32": "f4", "float64": "f8", "int32": "i4", "int16": "i2", "uint8": "u1"}


def array(values: NDArray[Any]) -> dict[str, str]:
    """Return a numpy array as Plotly's typed array, as it stands; NaN stays a gap. Small and fast for long series."""
    flat = np.ascontiguousarray(values)
    kind = _KINDS.get(str(flat.dtype))
    if kind is None:
        raise ValueError(f"dtype {flat.dtype} has no typed array; use one of {', '.join(_KINDS)}")
    packed = {"dtype": kind, "bdata": base64.b64encode(flat.tobytes()).decode("ascii")}
    if flat.ndim == 2:
        packed["shape"] = f"{flat.shape[0]}, {flat.shape[1]}"
    return packed


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return array(value) if str(value.dtype) in _KINDS else value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} does not go into a figure")


def pack(
    figure: dict[str, Any],
    *,
    alt: str,
    filename: str = "kvscope",
    at_s: float | None = None,
    age_s: float | None = None,
    age_text: str = "",
    events: tuple[str, ...] = ("click",),
) -> bytes:
    """
    Return the figure as the component takes it.

    Args:
        figure: `data` and `layout` of plotly.js; numpy arrays, NaN and None are allowed, NaN becomes a gap.
        alt: One sentence for those who do not see the figure.
        filename: Name of a downloaded PNG, without its ending.
        at_s: Instant of the tick; a new one redraws even where the data is the same.
        age_s: Age of the oldest figure drawn, at this instant; it counts on in the browser if ticks stop.
        age_text: Words around it with `{age}` in them, for example `data {age} old`; "" shows no age.
        events: Of `click` and `selected`, what the page wants to hear of.
    """
    return msgspec.json.encode(
        {
            "figure": figure,
            "alt": alt,
            "filename": filename,
            "at_s": at_s,
            "age_s": age_s,
            "age_text": age_text,
            "events": list(events),
        },
        enc_hook=_plain,
    )


CSS: Final = """
.kv-live { position: relative; width: 100%; }
.kv-live .kv-plot { width: 100%; }
.kv-live .kv-note { font-size: 0.75rem; line-height: 1.1rem; min-height: 1.1rem; text-align: right; opacity: 0.85; }
.kv-live .kv-note.kv-old { font-weight: 700; opacity: 1; }
.kv-live .modebar-btn svg { pointer-events: none; }
"""

_SCRIPT = """
const PALETTE = __PALETTE__;
const ASSET = '__ASSET__';

function library() {
  if (!window.__kvscopePlotly) {
    window.__kvscopePlotly = new Promise((resolve, reject) => {
      const tag = document.createElement('script');
      tag.src = new URL(ASSET, document.baseURI).href;
      tag.onload = () => resolve(window.Plotly);
      tag.onerror = () => { window.__kvscopePlotly = null; reject(new Error('plotly.js did not load')); };
      document.head.appendChild(tag);
    });
  }
  return window.__kvscopePlotly;
}

// Each figure asks twice a second, and there are two or three papers in a life.
const papers = {};

function theme(element) {
  const paper = getComputedStyle(element).getPropertyValue('--st-background-color').trim() || '#ffffff';
  if (!papers[paper]) {
    const probe = document.createElement('canvas').getContext('2d');
    probe.fillStyle = '#ffffff';
    probe.fillStyle = paper;
    const part = (i) => parseInt(probe.fillStyle.slice(1 + 2 * i, 3 + 2 * i), 16);
    papers[paper] = (0.299 * part(0) + 0.587 * part(1) + 0.114 * part(2)) < 128 ? 'dark' : 'light';
  }
  return papers[paper];
}

function hue(text, colors) {
  const [name, opacity] = text.slice(1).split('/');
  const base = colors[name];
  if (!base || opacity === undefined) return base || text;
  const part = (i) => parseInt(base.slice(1 + 2 * i, 3 + 2 * i), 16);
  return `rgba(${part(0)},${part(1)},${part(2)},${opacity})`;
}

// Only values under a key that names a colour are looked up, so a worker called "@active" keeps its name.
function paint(node, colors, isColor) {
  if (typeof node === 'string') return isColor && node[0] === '@' ? hue(node, colors) : node;
  if (Array.isArray(node)) return node.map((item) => paint(item, colors, isColor));
  if (node && typeof node === 'object') {
    const out = {};
    for (const key of Object.keys(node)) {
      const names = /color/i.test(key);
      out[key] = key === 'bdata' ? node[key] : paint(node[key], colors, names || (isColor && Array.isArray(node[key])));
    }
    return out;
  }
  return node;
}

function ageWords(seconds) {
  if (seconds < 9.95) return seconds.toFixed(1) + ' s';
  if (seconds < 99.5) return seconds.toFixed(0) + ' s';
  if (seconds < 5970) return (seconds / 60).toFixed(0) + ' min';
  return (seconds / 3600).toFixed(0) + ' h';
}

function note(box) {
  const state = box.__kv;
  const text = state.payload.age_text;
  const line = box.querySelector('.kv-note');
  if (!text || state.payload.age_s === null) { line.textContent = ''; return; }
  const age = state.payload.age_s + (performance.now() - state.since) / 1000;
  line.textContent = text.replace('{age}', ageWords(Math.max(0, age)));
  line.classList.toggle('kv-old', age - state.payload.age_s > 10);
}

async function react(box) {
  const state = box.__kv;
  const plot = box.querySelector('.kv-plot');
  const size = () => `${plot.offsetWidth} ${plot.offsetHeight}`;
  state.theme = theme(box);
  plot.style.minHeight = (state.payload.figure.layout.height || 200) + 'px';
  plot.setAttribute('role', 'img');
  plot.setAttribute('aria-label', state.payload.alt);
  // Ticks that come while plotly.js loads are one drawing, of the newest.
  if (state.isLoading) return;
  state.isLoading = true;
  try {
    const Plotly = await library().finally(() => { state.isLoading = false; });
    if (!plot.isConnected) return;
    const { figure, filename } = state.payload;
    state.theme = theme(box);
    const painted = paint(figure, PALETTE[state.theme], false);
    if (!state.bound) state.size = size();
    await Plotly.react(plot, painted.data, painted.layout, {
      responsive: true, displaylogo: false, plotlyServerURL: '', showLink: false, showSendToCloud: false,
      modeBarButtonsToRemove: ['sendChartToCloud', 'sendDataToCloud', 'lasso2d', 'select2d', 'autoScale2d'],
      toImageButtonOptions: { filename, scale: 2 },
    });
    plot.dataset.ticks = String((Number(plot.dataset.ticks) || 0) + 1);
    if (!state.bound) {
      state.bound = true;
      plot.on('plotly_click', (event) => {
        const point = event.points && event.points[0];
        if (!point || !state.payload.events.includes('click')) return;
        const id = Array.isArray(point.customdata) ? point.customdata[0] : point.customdata;
        state.hooks.setTriggerValue('click', { id: id ?? null, curve: point.curveNumber, x: point.x, y: point.y });
      });
      plot.on('plotly_selected', (event) => {
        if (!state.payload.events.includes('selected')) return;
        const points = event ? event.points : [];
        const ids = points.map((p) => (Array.isArray(p.customdata) ? p.customdata[0] : p.customdata));
        state.hooks.setStateValue('selected', ids.slice(0, 1000));
      });
      // The first call comes at once, mostly for the size that was drawn: then there is nothing to draw again.
      state.sizes = new ResizeObserver(() => {
        if (!plot.isConnected || !plot.offsetWidth || size() === state.size) return;
        state.size = size();
        Plotly.Plots.resize(plot);
      });
      state.sizes.observe(box);
    }
  } catch (error) {
    plot.textContent = String(error);
  }
}

export default function(component) {
  const { data, parentElement, setTriggerValue, setStateValue } = component;
  let box = parentElement.querySelector('.kv-live');
  if (!box) {
    box = document.createElement('div');
    box.className = 'kv-live';
    box.innerHTML = '<div class="kv-plot"></div><div class="kv-note" aria-live="off"></div>';
    parentElement.appendChild(box);
    box.__kv = { bound: false };
    box.__kv.clock = setInterval(() => {
      if (!box.isConnected) { clearInterval(box.__kv.clock); return; }
      note(box);
      if (theme(box) !== box.__kv.theme) react(box);
    }, 500);
  }
  const state = box.__kv;
  state.hooks = { setTriggerValue, setStateValue };
  const text = typeof data === 'string' ? data : new TextDecoder().decode(data);
  if (text !== state.text) {
    state.text = text;
    state.payload = JSON.parse(text);
    state.since = performance.now();
    note(box);
    react(box);
  }
  return () => {
    // Called on unmount: free Plotly's listeners once the node is really gone.
    setTimeout(() => {
      if (box.isConnected) return;
      clearInterval(state.clock);
      if (state.sizes) state.sizes.disconnect();
      if (window.Plotly) window.Plotly.purge(box.querySelector('.kv-plot'));
    }, 0);
  };
}
"""


def script() -> str:
    """Return the component's JavaScript with both palettes inside."""
    colors = msgspec.json.encode(palette()).decode()
    return _SCRIPT.replace("__PALETTE__", colors).replace("__ASSET__", ASSET_PATH)
