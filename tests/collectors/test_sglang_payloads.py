"""
Every SGLang payload, as `kvscope check --file` understands it: compared with the reviewed snapshot beside it.

`KVSCOPE_WRITE_EXPECTED=1` writes the snapshots anew; read the difference before you commit it.
"""

import json
import os
from pathlib import Path

import pytest

from commands.check import EXIT_UNDERSTOOD, as_json, check_files

ROOT = Path(__file__).resolve().parent.parent / "payloads" / "sglang"
FILES = sorted(
    path
    for path in ROOT.glob("0.*/*")  # The cases have their own tests.
    if path.suffix in (".json", ".prom") and not path.name.endswith(".expected.json")
)
# Answers of one worker that belong together.
TOGETHER = {
    name: [ROOT / "0.5.23-real" / f"{name}_{part}" for part in ("v1_loads.json", "metrics.prom", "model_info.json")]
    for name in ("idle", "load", "dp2_load")
}


def shown(value):
    """JSON with one figure a line, so that a difference can be read."""
    lines = ["{"]
    for key, item in value.items():
        if key == "pools":
            lines.append(' "pools": [')
            for pool in item:
                lines.append("  {")
                lines += [
                    f"   {json.dumps(word)}: {json.dumps(figure, ensure_ascii=False)}," for word, figure in pool.items()
                ]
                lines[-1] = lines[-1].removesuffix(",")
                lines.append("  },")
            lines[-1] = lines[-1].removesuffix(",")
            lines.append(" ],")
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            lines.append(f" {json.dumps(key)}: [")
            lines += [f"  {json.dumps(entry, ensure_ascii=False)}," for entry in item]
            lines[-1] = lines[-1].removesuffix(",")
            lines.append(" ],")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(item, ensure_ascii=False)},")
    lines[-1] = lines[-1].removesuffix(",")
    return "\n".join([*lines, "}"]) + "\n"


def compare(checked, expected: Path):
    """The output equals the snapshot; strict JSON; unknown exactly where nothing is given."""
    text = shown(as_json(checked))
    if os.environ.get("KVSCOPE_WRITE_EXPECTED"):
        expected.write_text(text)
    assert json.loads(text) == json.loads(expected.read_text(), parse_constant=pytest.fail)
    for pool in json.loads(text)["pools"]:
        for word, figure in pool.items():
            if isinstance(figure, dict) and "provenance" in figure:
                nothing = all(figure.get(key) is None for key in ("value", "low", "high"))
                assert (figure["provenance"] == "unknown") == nothing, word
                assert figure["reason"], word
                assert figure["value"] is None or figure["value"] >= 0 or word == "net_tokens_per_s", word


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_payload_reads_as_reviewed(path):
    """Every recorded answer is understood, and as it was reviewed."""
    checked = check_files([path])
    assert checked.exit_status == EXIT_UNDERSTOOD
    compare(checked, path.with_name(path.name + ".expected.json"))


@pytest.mark.parametrize("name", TOGETHER)
def test_answers_of_one_worker_read_together(name):
    """The answers of one worker, taken together, give what each knows: the split of free and prefix, the model."""
    checked = check_files(TOGETHER[name])
    assert checked.exit_status == EXIT_UNDERSTOOD
    compare(checked, ROOT / "0.5.23-real" / f"{name}_together.expected.json")
    for pool in checked.pools:
        composition = pool.composition
        parts = [
            getattr(composition, f"{word}_tokens").value
            for word in ("active", "in_flight", "prefix", "free", "unattributed")
        ]
        if None not in parts:
            assert sum(parts) == composition.usable_tokens.value
        assert composition.available_tokens.value == composition.usable_tokens.value - composition.used_tokens.value


def test_every_era_gives_the_same_words():
    """The same worker, told in the shapes of six versions, has the same use wherever a version tells it at all."""
    for mode, used, usable in (("prefill", 182336, 524288), ("decode", 401216, 524288), ("unified", 213504, 688128)):
        seen = set()
        for path in ROOT.glob(f"0.5.*/loads_{mode}.*"):
            if path.name.endswith(".expected.json"):
                continue
            (pool,) = check_files([path]).pools
            seen.add(path.parent.name)
            composition = pool.composition
            assert (composition.used_tokens.value, composition.usable_tokens.value) == (used, usable), path
            assert composition.available_tokens.value == usable - used, path
        assert len(seen) >= 3
