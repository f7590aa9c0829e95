"""How well `select` chooses among policies of independent families, on small tasks of Gymnasium."""
