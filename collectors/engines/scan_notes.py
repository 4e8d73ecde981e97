"""What the scan of a Prometheus text left out, as findings: the same sentences for every engine."""

from collectors.exposition import Exposition, bare_name
from scoring.model import Finding, Severity

MOST_NAMES = 8


def scan_findings(exposition: Exposition, prefix: str, path: str = "/metrics") -> list[Finding]:
    """Return findings on malformed lines, on values that are no numbers, and on series that appear twice."""
    findings = []
    if exposition.rejected_count:
        text = f"{exposition.rejected_count} lines of {path} are no samples (cut off or malformed) and were left out."
        findings.append(Finding(code="lines-rejected", text=text, severity=Severity.INFO))
    nameless = sorted({bare_name(sample.name, prefix) for sample in exposition.samples if sample.value is None})
    if nameless:
        text = f"NaN, infinite or contradictory, hence unknown and not 0: {', '.join(nameless[:MOST_NAMES])}."
        findings.append(Finding(code="values-unknown", text=text, severity=Severity.INFO))
    if exposition.duplicate_count:
        text = f"{exposition.duplicate_count} series appear twice; where they contradict, the figure is unknown."
        findings.append(Finding(code="duplicate-series", text=text))
    return findings
