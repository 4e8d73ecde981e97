"""
Runs the benchmarks named on the command line, or all there are, and prints one table.

A benchmark is a module of this package with `run() -> list[(name, value, unit)]`; a row whose unit is `x` is a ratio
against a peer timed in the same run. `KVSCOPE_BENCH=long` asks those that know it for their long form.
"""

import argparse
import importlib
import importlib.util
import os
import platform
import sys
import time
from pathlib import Path

NAMES = ("poll", "store", "decide", "replay", "fleet_page", "viewers")


def machine_line() -> str:
    """Return what was measured on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.processor() or platform.machine(),
    )
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{os.cpu_count()} cores of {model}; Python {platform.python_version()}; load before the run {load}"


def shown(value: float) -> str:
    """Return a number with the digits that mean something."""
    magnitude = abs(value)
    if magnitude >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if magnitude >= 100 else f"{value:.3g}"


def main() -> int:
    """Run and print; status 1 when a benchmark failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure speed and size.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(NAMES)} (default: all)")
    names = parser.parse_args().names
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 3
    wanted = [name for name in NAMES if name in names or not names]
    print(machine_line())
    failed = False
    for name in wanted:
        if importlib.util.find_spec(f"benchmarks.{name}") is None:
            print(f"\n{name}: not built")
            continue
        began = time.perf_counter()
        try:
            rows = importlib.import_module(f"benchmarks.{name}").run()
        except Exception as error:  # noqa: BLE001 # the others are still worth running; the status says that one failed
            print(f"\n{name}: failed: {type(error).__name__}: {error}")
            failed = True
            continue
        print(f"\n{name} ({time.perf_counter() - began:.0f} s)")
        width = max(len(row[0]) for row in rows) if rows else 0
        for row in rows:
            print(f"  {row[0]:<{width}}  {shown(row[1]):>10} {row[2]}", flush=True)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
