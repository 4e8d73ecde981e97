"""
Turn what a witness saw of real engines into a recording that `kvscope demo --recording` plays.

    python tests/peers/record.py FOLDER OUT.jsonl.gz

One JSON line an answer, ascending in time: `/v1/loads`, `/get_loads` and `/workers` whole, `/model_info` once; of
`/metrics` the series that the dialects read (a whole one is 95 KB), with their TYPE lines. No `/server_info`: it
holds keys.
"""

import gzip
import json
import sys
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from collectors.engines.sglang_metrics import _WANTED

WHOLE = ("/v1/loads", "/get_loads", "/workers", "/model_info")


def kept_lines(text: str) -> str:
    """Return the lines of an exposition that carry a series the dialect reads, and the type of each."""
    kept = []
    types: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            types[line.split(" ")[2]] = line
            continue
        if not line or line.startswith("#"):
            continue
        name = line.partition("{")[0].partition(" ")[0]
        if name.encode() in _WANTED or name in _WANTED:
            for base in (name, name.rpartition("_")[0]):
                if base in types:
                    kept.append(types.pop(base))
                    break
            kept.append(line)
    return "\n".join(kept) + "\n"


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    lines = []
    with (folder / "witness.jsonl").open() as rows:
        for raw in rows:
            row = json.loads(raw)
            path = urlsplit(row["url"]).path
            if row["status"] != 200:
                continue
            line = {"t": round(row["t"], 3), "url": row["url"]}
            if path == "/metrics":
                lines.append({**line, "text": kept_lines(row["text"])})
            elif path in WHOLE:
                lines.append({**line, "body": json.loads(row["text"])})
    lines.sort(key=lambda line: line["t"])
    with out.open("wb") as raw_file, gzip.GzipFile("", "wb", mtime=0, fileobj=raw_file) as file:
        for line in lines:
            file.write((json.dumps(line) + "\n").encode())
    print(f"{len(lines)} lines, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
