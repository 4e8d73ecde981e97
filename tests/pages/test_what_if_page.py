"""The What-if page in every state, and its figures: what is drawn is what the decision says."""

import json
import math
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from collectors.settings import Settings
from pages import _what_if_form as form
from pages._decide_settings import decide_settings
from pages.figures import what_if as figures
from pages.figures import what_if_tables as tables
from pages.figures import what_if_terms
from pages.texts import speaker
from scoring.demand import RequestView, known_output
from scoring.herd import herd_variants
from scoring.model import FleetSnapshot, Role, SourceState
from scoring.policy import POLICIES, DecideSettings, decide
from scoring.policy.explain import Term
from scoring.policy.sketch import sketch_fleet, sketch_pool, two_node_case
from scoring.sensitivity import input_flips, weight_flips
from scoring.slo import SLO_CLASSES
from scoring.what_if import Question, every_policy, placement

T = speaker("en")
REQUEST = RequestView(prompt_tokens=64_000, output=known_output(2_000))
NOW_S = 1_780_000_000.0


def opened(watch, fleet: FleetSnapshot | None, **query: str) -> AppTest:
    """Return the page drawn on a fleet."""
    running = watch(fleet)
    if running is not None:
        running.settings = Settings()
    app = AppTest.from_file("../../app.py", default_timeout=60)
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    app.switch_page("pages/what_if.py")
    app.run()
    assert not app.exception, [item.message for item in app.exception]
    return app


def figure(payload: bytes) -> dict:
    """Return the plotly figure inside a payload."""
    return json.loads(payload)["figure"]


def words(app: AppTest) -> str:
    """Return all text of the page."""
    found = [*app.markdown, *app.caption, *app.info, *app.warning, *app.error, *app.title, *app.subheader]
    return "\n".join(str(item.value) for item in found)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_two_node_case_is_told(watch, lang: str) -> None:
    """The sentence names the pair, the runner-up and the term that decides; the metrics say the same."""
    app = opened(watch, two_node_case(NOW_S), prompt="64000", output="2000", lang=lang)
    text = words(app)
    assert "D\\-B/0" in text
    assert ("TransferTime" if lang == "en" else "传输时间") in text
    metrics = [item.value for item in app.metric]
    assert metrics[0] == "P-1/0 → D-B/0"
    said = decide(REQUEST, two_node_case(NOW_S))
    assert metrics[1] == figures.score_text(said.score)
    assert metrics[2] == figures.score_text(said.margin)
    drawn = [item.value for item in app.dataframe]
    policies = next(table for table in drawn if "policy" in table)
    titles = list(policies["policy"])
    row = titles.index(
        T("what_if.policy_lowest_utilization") if lang == "en" else speaker("zh")("what_if.policy_lowest_utilization")
    )
    assert list(policies["choice"])[row] == "P-1/0 → D-A/0"


def test_states_are_drawn_not_raised(watch, fleet_of_demo) -> None:
    """No collector, no pool, a demo fleet with unknowns and stale pools, all stale: each is a page with words."""
    app = opened(watch, None)
    assert any("No fleet" in item.value for item in app.title)
    assert T("what_if.no_pools") in words(opened(watch, FleetSnapshot(at_s=NOW_S, pools=())))
    assert app is not None
    drawn = opened(watch, fleet_of_demo, prompt="4000")
    assert len(drawn.get("bidi_component")) >= 3
    stale = replace(fleet_of_demo, pools=tuple(replace(pool, state=SourceState.STALE) for pool in fleet_of_demo.pools))
    assert "every pool is stale or unreachable" in words(opened(watch, stale)).replace("\\", "")


def test_bad_input_is_refused_on_the_page(watch) -> None:
    """Text that is no hit, a hit beyond the prompt, a pool the fleet does not have: said, and the page stands."""
    fleet = two_node_case(NOW_S)
    assert "is not POOL=TOKENS" in words(opened(watch, fleet, hit="P-1/0"))
    too_long = words(opened(watch, fleet, prompt="1000", hit="P-1/0=5000")).replace("\\", "")
    assert "prefix hit on P-1/0 is 5000; allowed is 0 to 1000" in too_long
    assert "no pool <b>x</b>" in words(opened(watch, fleet, hit="<b>x</b>=5")).replace("\\", "")
    assert "is not QUANTILE=TOKENS" in words(opened(watch, fleet, quantiles="often=3"))
    assert "must ascend" in words(opened(watch, fleet, quantiles="0.9=1,0.5=9"))


def test_weights_in_the_link_change_the_score(watch) -> None:
    """A weight in the URL is taken; without it the class's preset is, and another class has its own."""
    fleet = two_node_case(NOW_S)
    plain = opened(watch, fleet, prompt="64000", output="2000")
    heavy = opened(watch, fleet, prompt="64000", output="2000", w_transfer="5")
    batch = opened(watch, fleet, prompt="64000", output="2000", **{"class": "batch"})
    scores = [float(app.metric[1].value) for app in (plain, heavy, batch)]
    assert scores[1] == pytest.approx(scores[0] + 4 * 0.338, abs=0.01)
    assert scores[2] < scores[0]


def test_a_hostile_pool_name_stays_text(watch) -> None:
    """Names from outside are data in sentences, tables and figures."""
    name = "<img src=x onerror=alert(1)>/0"
    fleet = sketch_fleet(
        [sketch_pool(name, Role.UNIFIED, at_s=NOW_S), sketch_pool("u/0", Role.UNIFIED, used_tokens=9e5)], at_s=NOW_S
    )
    app = opened(watch, fleet)
    assert "<img" not in words(app).replace("\\<img", "")
    for item in app.get("bidi_component"):
        shown = json.loads(item.proto.bytes)["figure"]
        for trace in shown["data"]:
            trace.pop("customdata", None)  # Ids a click returns: never drawn.
        assert "<img" not in json.dumps(shown)


def test_the_map_marks_choice_and_refused() -> None:
    """Colour is the score, a cross a refused pair with its reason, the frame the choice; unified pools stand alone."""
    fleet = two_node_case()
    pools = (*fleet.pools, sketch_pool("U/0", Role.UNIFIED, used_tokens=990_000))
    decision = decide(REQUEST, replace(fleet, pools=pools))
    drawn = figure(figures.score_map(decision, 1.0, T))
    heat, crosses = drawn["data"]
    assert crosses["customdata"] == ["U/0|U/0"]
    assert "no-room" in crosses["hovertext"][0]
    assert heat["customdata"][0] == ["P-1/0|D-A/0", "P-1/0|D-B/0", ""]
    frame = drawn["layout"]["shapes"][0]
    assert (frame["x0"], frame["y0"]) == (0.5, -0.5)
    scores = [figures.score_text(each.score) for each in decision.ranking]
    assert sorted(text for row in heat["text"] for text in row if text) == sorted(scores)


def _compared(name: str, terms: tuple[Term, ...], rests: dict[str, str] | None = None) -> what_if_terms.Compared:
    return what_if_terms.Compared(name=name, terms=terms, rests=rests or {})


def test_bars_add_up_to_the_score() -> None:
    """The stacked contributions of a pair sum to its score, the benefit to the left."""
    warm = replace(REQUEST, prefix_hit_tokens={"P-1/0": 32_000})
    decision = decide(warm, two_node_case())
    pairs = [_compared("A", decision.terms), _compared("B", decision.runner_up_terms)]
    drawn = figure(what_if_terms.term_bars(pairs, 1.0, 0.0, T))
    sums = [sum(trace["x"][row] for trace in drawn["data"]) for row in (0, 1)]
    assert sums == pytest.approx([decision.score, decision.runner_up.score])
    assert any(trace["x"][0] < 0 for trace in drawn["data"])


def test_placement_and_herd_bars_conserve() -> None:
    """Parts of a bar are shares that add up to one; a herd's bars add up to the herd."""
    decision = decide(REQUEST, two_node_case())
    rows = [("now", placement(decision, "D-B/0", 0.0, 0)), ("with", placement(decision, "D-B/0"))]
    drawn = figure(figures.placement_bars(rows, 1.0, 0.0, T, "en"))
    for row in (0, 1):
        assert sum(trace["x"][row] for trace in drawn["data"]) == pytest.approx(1.0)
    herds = herd_variants(
        replace(REQUEST, prompt_tokens=4_000), two_node_case(), "lowest-utilization", count=12, age_s=1
    )
    bars = figure(figures.herd_bars(herds, 1.0, 0.0, T))
    for row in range(len(herds)):
        assert sum(trace["x"][row] for trace in bars["data"]) == 12


def test_tables_hold_what_the_decision_holds() -> None:
    """Ranking, rejections, policies, flips and formulas as columns of equal length, nothing unknown as 0."""
    question = Question(request=replace(REQUEST, prompt_tokens=300_000), fleet=two_node_case())
    decision = question.ask()
    titles = {name: name for name in POLICIES}
    found = [
        tables.ranking_columns(decision),
        tables.rejection_columns(decision, T),
        tables.policy_columns(every_policy(question), titles, T),
        tables.flip_columns([*weight_flips(decision), *input_flips(question, decision)], T),
    ]
    for table in found:
        assert len({len(column) for column in table.values()}) == 1
    assert found[1]["filter"] == ["no-room"]
    lines = tables.formula_text(_compared("A", decision.terms), T).splitlines()
    assert lines[-1].split() == ["=", figures.score_text(decision.score)]
    assert len(lines) == 15
    assert all(term.formula in lines[2 * place + 1] for place, term in enumerate(decision.terms))
    assert found[3]["at"][-1] == T("what_if.never")
    assert figures.score_text(None) == figures.score_text(math.inf) == "–"
    assert figures.score_text(0.0) == "0"
    assert figures.score_text(1e-9) == "<0.001"


def test_pairs_are_read_forgivingly_and_wrong_ones_named() -> None:
    """Spaces and empty parts do not matter; the first part that is no pair is given back."""
    assert form.parse_pairs(" P-1/0 = 5 , , D=2.5") == ((("P-1/0", 5.0), ("D", 2.5)), "")
    assert form.parse_pairs("P-1/0=5, nothing") == ((("P-1/0", 5.0),), "nothing")
    assert form.parse_pairs("=5")[1] == "=5"
    assert form.parse_pairs("") == ((), "")


def test_hits_reach_pools_workers_and_everyone() -> None:
    """A hit may name a pool, a worker with all its ranks, or every pool; later ones count over earlier ones."""
    fleet = sketch_fleet([sketch_pool(name, Role.UNIFIED) for name in ("a/0", "a/1", "b/0")])
    assert form.hits_on((("*", 1), ("a", 2), ("a/1", 3)), fleet) == {"a/0": 2, "a/1": 3, "b/0": 1}


def test_the_fleet_files_words_are_the_presets() -> None:
    """Classes, budgets and weights of an empty fleet file are the presets of scoring: one truth in two places."""
    made = decide_settings(Settings())
    assert made.classes == SLO_CLASSES
    assert made.reserve == DecideSettings().reserve
