"""The palette: readable on both themes, and its neighbours apart for colour-blind readers."""

import itertools

import numpy as np
import pytest

from pages.figures.terms import STACK, STATES
from pages.figures.theme import palette

# Machado, Oliveira, Fernandes 2009, severity 1.0, on linear RGB.
BLINDNESS = {
    "none": np.eye(3),
    "protan": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "deutan": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "tritan": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}


def _linear(hue: str) -> np.ndarray:
    part = np.array([int(hue[i : i + 2], 16) for i in (1, 3, 5)]) / 255.0
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def _contrast(first: str, second: str) -> float:
    weights = np.array([0.2126, 0.7152, 0.0722])
    high, low = sorted((float(_linear(first) @ weights), float(_linear(second) @ weights)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _lab(linear: np.ndarray) -> np.ndarray:
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = matrix @ np.clip(linear, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_meet_aa_and_marks_three_to_one(theme: str) -> None:
    """WCAG: text 4.5:1 on the page and on panels, marks that carry meaning 3:1 on the page."""
    hues = palette()[theme]
    for ink, paper in itertools.product(("ink", "soft"), ("paper", "panel")):
        assert _contrast(hues[ink], hues[paper]) >= 4.5, (ink, paper)
    for word in ("active", "in_flight", "prefix", "fragmentation", "unattributed", "reserved", "queued", "committed"):
        assert _contrast(hues[word], hues["paper"]) >= 3.0, word
    # Free is the light part on purpose; its outline carries it.
    assert _contrast(hues["outline"], hues["paper"]) >= 3.0
    for state in STATES:
        assert _contrast(hues[f"state_{state}"], hues["paper"]) >= 3.0, state


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eyes", sorted(BLINDNESS))
def test_parts_of_a_bar_stay_apart_for_every_eye(theme: str, eyes: str) -> None:
    """Any two parts that can meet in a bar differ by 12 CIELAB or more, or one of them is hatched."""
    hues = palette()[theme]
    solid = [word for word in STACK if word != "unattributed"]
    never_meet = [{"prefix", "free_or_prefix"}, {"free", "free_or_prefix"}]
    for first, second in itertools.combinations(solid, 2):
        if {first, second} in never_meet:
            continue
        seen = [_lab(BLINDNESS[eyes] @ _linear(hues[word])) for word in (first, second)]
        apart = np.linalg.norm(seen[0] - seen[1])
        assert apart >= 12.0, (first, second, round(float(apart), 1))


def test_every_state_has_a_sign_of_its_own() -> None:
    """State is never told by colour alone."""
    signs = [sign for sign, _, _ in STATES.values()]
    assert len(set(signs)) == len(signs)


def test_both_themes_know_the_same_names() -> None:
    """A figure drawn in one theme can be drawn in the other."""
    themes = palette()
    assert set(themes["light"]) == set(themes["dark"])
