"""Every finding's code is documented, and every documented code exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")


def codes_in_source():
    """Codes given to Finding, and to the helper that builds one, as constants in the source."""
    found = set()
    for folder in ("collectors", "scoring", "commands"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call):
                    continue
                name = node.func.id if isinstance(node.func, ast.Name) else ""
                values = [word.value for word in node.keywords if word.arg == "code"] if name == "Finding" else []
                values += node.args[:1] if name == "_finding" else []
                found |= {v.value for v in values if isinstance(v, ast.Constant) and CODE.fullmatch(str(v.value))}
    return found


def test_every_finding_has_a_row():
    """A code without a row in docs/findings.md cannot be looked up by the reader who meets it."""
    text = (ROOT / "docs" / "findings.md").read_text()
    documented = set(re.findall(r"`([a-z0-9-]+)`", text))
    source = codes_in_source()
    assert len(source) > 20
    assert sorted(source - documented) == []


def test_every_row_has_its_finding():
    """A documented code that no source mentions is a row about nothing."""
    text = (ROOT / "docs" / "findings.md").read_text()
    rows = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    documented = {code for row in rows for code in re.findall(r"`([a-z0-9-]+)`", row)}
    everything = "".join(
        path.read_text() for folder in ("collectors", "scoring", "commands") for path in (ROOT / folder).rglob("*.py")
    )
    assert sorted(code for code in documented if f'"{code}"' not in everything) == []
