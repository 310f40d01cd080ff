"""A record of a measurement as text, for people."""

from __future__ import annotations


def span(us: float) -> str:
    """Microseconds in the unit that suits them."""
    for least, scale, unit in ((1e6, 1e-6, "s"), (1e3, 1e-3, "ms"), (1, 1, "us"), (0, 1e3, "ns")):
        if us >= least:
            return f"{us * scale:.3g} {unit}"
    raise ValueError(f"expected a time, got {us} us")


def count(value: float) -> str:
    """A rate in the unit that suits it."""
    for least, scale, unit in ((1e9, 1e-9, " G"), (1e6, 1e-6, " M"), (1e3, 1e-3, " k")):
        if value >= least:
            return f"{value * scale:.3g}{unit}"
    return f"{value:.3g} "


def rate(value: float, unit: str) -> str:
    """So many units per second."""
    return f"{count(value * 1e6)}B/s" if unit == "MB" else f"{count(value)}{unit}/s"


def verdict(bar: dict) -> str:
    """A bar and whether it is held."""
    if bar["held"] is None:
        return f"{bar['bar']}: not measured"
    said = value(bar, bar["value"])
    if "range" in bar:
        said += f" ({' to '.join(value(bar, one) for one in bar['range'])})"
    return f"{bar['bar']}: {said}, {'held' if bar['held'] else 'MISSED'}"


def value(bar: dict, found: float) -> str:
    """What was found, in the unit of the bar."""
    return span(found * 1e6) if bar.get("unit") == "s" else f"{found:.3g}"


def show(record: dict) -> str:
    """All of it."""
    lines = [f"{record['measurement']}: {record['work']} [{record['seconds']} s, load {record['load']}]"]
    for row in record.get("candidates", ()):
        low, high = row["us_range"]
        lines.append(
            f"  {row['candidate']:<44} {rate(row['rate'], record['unit']):>18}  {span(row['us']):>8}"
            f" ({span(low)} to {span(high)}), CPU {processor(row)}, {row['ratio']:.3g} x ours"
        )
    for name, value in record.get("values", {}).items():
        lines.append(f"  {name:<44} {value:.4g} {record['unit']}")
    lines += [f"  {said}" for said in record.get("said", ())]
    lines += [f"  bar {verdict(bar)}" for bar in record.get("bars", ())]
    lines += [f"  WRONG: {said}" for said in record["wrong"]]
    return "\n".join(lines)


def processor(row: dict) -> str:
    """CPU time per unit, of all processes, where it was counted."""
    return span(row["cpu_us"]) if row["cpu_us"] else "-"
