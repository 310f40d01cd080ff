"""`docs/performance.md` and its plots, made from the records of `benchmarks.run`.

    python -m benchmarks.report RECORDS.jsonl [--out docs/performance.md]

Of several records of a measurement the last one counts, so parts may be measured again. `log.md` goes in as it is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from benchmarks.plots import draw
from benchmarks.show import processor, rate, span, value

SECTIONS = {
    "Transitions in process": ("w1-",),
    "Windows in process": ("w2-",),
    "Frames": ("w3-",),
    "Whole trajectories, against Reverb": ("items-", "inproc-"),
    "Responses of a language model": ("w4-",),
    "Over TCP": ("latency-", "windows-", "bulk-"),
    "Our ways of writing": ("insert-", "packed-", "append-", "episode-", "vector-"),
    "Writers and readers at once": ("together-",),
    "Growth and memory": ("growth-", "memory-"),
    "Start": ("import", "client", "ready", "first-"),
    "The machine": ("limit-",),
    "A larger service, simulated": ("simulated",),
}

HEAD = """# Performance

Made by `python -m benchmarks.report` from what `make bench PEERS={peers}` measured; do not edit it. The log at the end
is kept in `benchmarks/log.md`.

Absolute times of a shared machine say little; the ratios are of rounds in which all candidates took turns: the median
round, and the range of all. Each candidate's results are checked. CPU time is that of all processes that work for it.
A ratio above 1 says that the other needed more time than GEAR's first candidate.

{facts}
"""


def latest(lines: Iterable[str]) -> dict[str, dict]:
    """The last record of each measurement, in the order in which they first came."""
    records: dict[str, dict] = {}
    for line in lines:
        record = json.loads(line)
        records[record["measurement"]] = record
    if not records:
        raise SystemExit("there are no records; make some with `python -m benchmarks.run --json FILE`")
    return records


def facts(records: dict[str, dict]) -> str:
    """Date, versions, machine, and who is missing."""
    everything = list(records.values())
    dates = sorted({record["date"][:10] for record in everything})
    loads = [record["load"] for record in everything]
    last = everything[-1]
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    for record in everything:
        versions |= record["peers"]
        missing |= record["missing"]
    said = [
        f"- Date: {' to '.join(dict.fromkeys((dates[0], dates[-1])))}",
        f"- Machine: {last['cpu']}, {last['cores']} cores; load while measuring {min(loads):.1f} to {max(loads):.1f}"
        " (the measured processes included)",
        f"- GEAR {last['gear']}, Python {last['python']}, NumPy {last['numpy']}, Numba {last['numba']}, "
        f"pyzmq {last['pyzmq']}",
        *(f"- {version}" for version in versions.values()),
        *(f"- **{name} is missing**: {why}" for name, why in missing.items() if name not in versions),
    ]
    if sorted(loads)[len(loads) // 2] > 2 * last["cores"]:
        said.append(
            "\n**The machine was busy with other work meanwhile**: what waits for another process is slower than these "
            "ratios should be, and absolute times mean nothing. Measure again on a quiet one."
        )
    return "\n".join(said)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows])


def bars(records: dict[str, dict]) -> str:
    """Every bar, those that are missed by most first."""
    rows = []
    for name, record in records.items():
        for bar in record.get("bars", ()):
            if bar["held"] is None:
                rows.append((float("inf"), (name, bar["bar"], "not measured", "-")))
                continue
            found = value(bar, bar["value"])
            if "range" in bar:
                found += f" ({' to '.join(value(bar, one) for one in bar['range'])})"
            rows.append((bar["reached"], (name, bar["bar"], found, "held" if bar["held"] else "**missed**")))
        rows += [(-1.0, (name, "a right result", said, "**wrong**")) for said in record["wrong"]]
    rows.sort(key=lambda row: row[0])
    held = sum(row[1][3] == "held" for row in rows)
    return f"{held} of {len(rows)} are held.\n\n" + table(
        ("measurement", "bar", "found", ""), [row for _, row in rows]
    )  # fmt: skip


def measurement(record: dict) -> str:
    """One measurement."""
    said = [f"**{record['measurement']}**: {record['work']}"]
    if "candidates" in record:
        one = record["unit"]
        head = ("", "rate", "time per unit", "CPU time per unit", "x GEAR's time")
        rows = [
            (
                row["candidate"],
                rate(row["rate"], one),
                f"{span(row['us'])} ({span(row['us_range'][0])} to {span(row['us_range'][1])})",
                processor(row),
                f"{row['ratio']:.3g} ({row['ratio_range'][0]:.3g} to {row['ratio_range'][1]:.3g})",
            )
            for row in record["candidates"]
        ]
        said.append(table(head, rows))
    if "values" in record:
        unit = f" {record['unit']}" if record["unit"] else ""
        said.append(table(("", "found"), [(name, f"{found:.4g}{unit}") for name, found in record["values"].items()]))
        said += record.get("said", ())
    said += [f"Wrong: {wrong}" for wrong in record["wrong"]]
    return "\n\n".join(said)


def report(records: dict[str, dict], plots: list[tuple[str, str]], log: str) -> str:
    """The whole page. plots: title and path, from the page's folder."""
    peers = ",".join(dict.fromkeys(name for record in records.values() for name in record["peers"]))
    parts = [HEAD.format(peers=peers, facts=facts(records)).rstrip(), "## Bars", bars(records)]
    parts += [f"![{title}]({path})" for title, path in plots]
    for title, begins in SECTIONS.items():
        some = [record for name, record in records.items() if name.startswith(begins)]
        if some:
            parts += [f"## {title}", *(measurement(record) for record in some)]
    return "\n\n".join([*parts, log.strip()]) + "\n"


def main() -> None:
    """Read, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", help="files of JSON lines, the newest last")
    parser.add_argument("--out", default="docs/performance.md", help="the page; plots go into a folder beside it")
    given = parser.parse_args()
    records = latest(line for name in given.records for line in Path(name).read_text().splitlines())
    out = Path(given.out)
    folder = out.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    plots = [(title, f"{folder.name}/{name}") for title, name in draw(records, folder)]
    out.write_text(report(records, plots, (Path(__file__).parent / "log.md").read_text()))
    print(f"wrote {out} and {len(plots)} plots")


if __name__ == "__main__":
    main()
