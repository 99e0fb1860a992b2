"""All plots of a study."""

from pathlib import Path

from interlock.study.report.plot_cells import curves_plot, history_plot, pareto_plot
from interlock.study.report.plot_effects import effects_plot, interactions_plot
from interlock.study.report.plot_runs import run_plots
from interlock.study.report.results import Results
from interlock.study.report.style import Plot, write_plot


def plots_of(results: Results) -> list[Plot]:
    """Those for which the study has something to show, the most important first."""
    first = (effects_plot, interactions_plot, pareto_plot, curves_plot, history_plot)
    made = [plot(results) for plot in first]
    return [*(plot for plot in made if plot is not None), *run_plots(results)]


def write_plots(plots: list[Plot], directory: Path) -> list[Path]:
    """Write all as PNG and SVG. Raises MissingExtraError without matplotlib."""
    return [path for plot in plots for path in write_plot(plot, directory)]
