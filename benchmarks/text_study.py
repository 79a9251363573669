"""The study of docs/results/text.md: every sampler on trained text models, several seeds, tables and figures from the result files.

    python sample.py --ckpt CKPT --sampler all --nfe 8,16,32,64,128 --num_samples 256 --seed 0 --out docs/results/text/masked_seed_0
    ... seeds 1 and 2, and the uniform model ...
    python benchmarks/text_study.py docs/results/text/masked_seed_* --metric ppl_corpus_ngram --plot docs/results/text/masked.png

Prints the mean over seeds with its standard error over seeds, and the ratio to euler at the same budget.
"""

import argparse
import math
import statistics
from pathlib import Path

from tauflow.tables import Cell, Measured, Table


def combine(tables: list[Table]) -> Table:
    """One table with the mean over seeds of each metric and the standard error of that mean."""
    cells = []
    for cell in tables[0].cells:
        same = [other.cell(cell.sampler, cell.nfe) for other in tables]
        if any(other is None or other.problem for other in same):
            continue
        metrics = {}
        for name in cell.metrics:
            values = [other.metrics[name].value for other in same]
            spread = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else cell.metrics[name].standard_error
            metrics[name] = Measured(statistics.fmean(values), spread)
        cells.append(Cell(cell.sampler, cell.nfe, samples=sum(other.samples for other in same), metrics=metrics))
    return Table(cells, tables[0].higher_is_better, tables[0].reference)


def ratios(table: Table, metric: str, baseline: str) -> str:
    lines = [f"| {metric}, ratio to {baseline} | {' | '.join(map(str, table.nfes))} |", f"|---|{'---|' * len(table.nfes)}"]
    for sampler in table.samplers:
        row = []
        for nfe in table.nfes:
            found, base = (table.measured(metric, name, nfe) for name in (sampler, baseline))
            row.append(f"{found.value / base.value:.3f}" if found and base else "")
        lines.append(f"| {sampler} | {' | '.join(row)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="result folders of sample.py, one a seed")
    parser.add_argument("--metric", default="ppl_corpus_ngram", help="of the ratios and the plot")
    parser.add_argument("--baseline", default="euler", help="sampler that the ratios are to")
    parser.add_argument("--plot", type=Path, help="where to draw the metric against NFE")
    arguments = parser.parse_args()
    table = combine([Table.read(folder) for folder in arguments.folders])
    print(
        f"{len(arguments.folders)} seeds, {table.cells[0].samples} samples of each sampler and budget in all; ± standard error over seeds\n"
    )
    print(table.to_markdown().split("Cost\n")[0])
    print(ratios(table, arguments.metric, arguments.baseline))
    if arguments.plot:
        table.plot(arguments.metric).savefig(arguments.plot, dpi=120)


if __name__ == "__main__":
    main()
