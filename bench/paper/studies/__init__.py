"""Studies on the paper's sets: which cells each needs, how a cell is run, tables, plots and the page of results."""
