"""
The backtest as one picture: how early each alarm comes, and how often it is right. Written as SVG by hand, since a
document's picture needs neither a browser nor another library.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from commands.backtest_score import Score
from scoring.alarm_threshold import LEAD_S

_HUES: Final = ("#0B5FAE", "#D27A00", "#1B8A6B", "#A34F8B")
_WIDTH: Final = 900
_HEIGHT: Final = 360
_LONGEST_S: Final = 60.0


def svg(scores: Mapping[str, Score]) -> str:
    """Return the picture: left the share of events recalled by lead, right precision against recall."""
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
            f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        *_frame(60, 40, 380, 260, "share of first retractions seen at least so long before", "lead, s", _LONGEST_S),
        *_frame(530, 40, 300, 260, "precision (up) against recall (right)", "recall", 1.0),
    ]
    limit_x = 60 + 380 * LEAD_S / _LONGEST_S
    parts.append(f'<line x1="{limit_x}" y1="40" x2="{limit_x}" y2="300" stroke="#B3261E" stroke-dasharray="4 3"/>')
    parts.append(f'<text x="{limit_x + 4}" y="52" fill="#B3261E">{LEAD_S:.0f} s</text>')
    for score, hue in zip(scores.values(), _HUES, strict=False):
        parts.append(_curve(score, hue))
        if score.precision is not None and score.recall is not None:
            x, y = 530 + 300 * score.recall, 300 - 260 * score.precision
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="{hue}"/>')
    for place, (name, hue) in enumerate(zip(scores, _HUES, strict=False)):
        x = 60 + 200 * place
        parts.append(f'<rect x="{x}" y="334" width="12" height="12" fill="{hue}"/>')
        parts.append(f'<text x="{x + 18}" y="344" fill="#1B2430">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _frame(x: int, y: int, width: int, height: int, title: str, axis: str, longest: float) -> list[str]:
    parts = [f'<text x="{x}" y="{y - 14}" font-size="13" fill="#1B2430">{escape(title)}</text>']
    for step in range(5):
        share = step / 4
        at_y, at_x = y + height * (1 - share), x + width * share
        parts.append(f'<line x1="{x}" y1="{at_y}" x2="{x + width}" y2="{at_y}" stroke="#E3E8EE"/>')
        parts.append(f'<text x="{x - 8}" y="{at_y + 4}" text-anchor="end" fill="#525C6B">{share:g}</text>')
        label = f"{longest * share:g}"
        parts.append(f'<text x="{at_x}" y="{y + height + 16}" text-anchor="middle" fill="#525C6B">{label}</text>')
    parts.append(f'<text x="{x + width}" y="{y + height + 30}" text-anchor="end" fill="#525C6B">{escape(axis)}</text>')
    return parts


def _curve(score: Score, hue: str) -> str:
    count = max(score.event_count, 1)
    points: list[tuple[float, float]] = [(0.0, len(score.leads_s) / count)]
    for place, lead in enumerate(score.leads_s):
        left = len(score.leads_s) - place
        points += [(lead, left / count), (lead, (left - 1) / count)]
    return _polyline([(60 + 380 * min(x, _LONGEST_S) / _LONGEST_S, 300 - 260 * y) for x, y in points], hue)


def _polyline(points: Sequence[tuple[float, float]], hue: str) -> str:
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{text}" fill="none" stroke="{hue}" stroke-width="2.5"/>'
