"""The demo's command line: trains, shows a progress bar, prints what was reached and saves a plot."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from examples.demo.training import Run, train
from examples.output import picture


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="CartPole learned through GEAR")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, one run after the other")
    parser.add_argument("--updates", type=int, default=25_000, help="gradient steps of a run")
    parser.add_argument("--seconds", type=float, default=120.0, help="a run ends after that many at the latest")
    parser.add_argument("--output", type=picture, default=Path("demo.png"), help="where the plot goes")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # either ends everything in order, also where a shell ignores SIGINT
        signal.signal(number, signal.default_int_handler)
    console = Console()
    runs: list[Run] = []
    try:
        for seed in range(arguments.seed, arguments.seed + arguments.seeds):
            runs.append(_show(console, seed, arguments.updates, arguments.seconds))
    except KeyboardInterrupt:
        console.print("interrupted")
        raise SystemExit(130) from None
    finally:
        if runs:
            plot(runs, arguments.output)
            console.print(f"plot saved to {arguments.output}")
    if len(runs) > 1:
        ratios = [run.last() / run.first() for run in runs]
        console.print(f"over {len(runs)} seeds the mean return grew {min(ratios):.1f}x to {max(ratios):.1f}x")


def _show(console: Console, seed: int, updates: int, seconds: float) -> Run:
    """Train one seed under a progress bar and print its result."""
    columns = (
        TextColumn("seed {task.fields[seed]}"),
        BarColumn(12),
        TextColumn("{task.percentage:.0f}%"),
        TextColumn("{task.fields[inserts]:,.0f} inserts/s"),
        TextColumn("{task.fields[samples]:,.0f} samples/s"),
        TextColumn("return {task.fields[mean]:.0f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=updates, seed=seed, inserts=0.0, samples=0.0, mean=0.0)

        def report(done: int, inserts: float, samples: float, mean: float) -> None:
            progress.update(task, completed=done, inserts=inserts, samples=samples, mean=mean)

        run = train(seed, updates, seconds, report)
    inserts, samples = np.median([r[1:] for r in run.rates], axis=0)
    console.print(
        f"seed {seed}: mean return of the first 50 episodes {run.first():.0f}, of the last 50 {run.last():.0f} "
        f"({run.last() / run.first():.1f}x), without exploration {run.greedy:.0f}; {run.updates:,} updates "
        f"in {run.seconds:.0f} s, median {inserts:,.0f} inserts/s, {samples:,.0f} samples/s",
        soft_wrap=True,
    )
    return run


def plot(runs: list[Run], path: Path) -> None:
    """Draw the returns (running mean of 50 episodes) and the rates of every run."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (returns, rates) = plt.subplots(2, sharex=True, figsize=(8, 6), layout="constrained")
    for run in runs:
        times, values = np.array(run.episodes).T
        width = min(50, len(values))
        smooth = np.convolve(values, np.full(width, 1 / width), "valid")
        returns.plot(times[width - 1 :], smooth, label=f"seed {run.seed}")
        seconds, inserts, samples = np.array(run.rates).T
        color = returns.lines[-1].get_color()
        rates.plot(seconds, samples, color=color, label=f"samples/s, seed {run.seed}")
        rates.plot(seconds, inserts, color=color, linestyle="--", label=f"inserts/s, seed {run.seed}")
    returns.set(ylabel="return, mean of 50 episodes", title="CartPole-v1, double DQN, prioritized replay through GEAR")
    rates.set(xlabel="seconds", ylabel="steps per second", yscale="log")
    for axes in (returns, rates):
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
