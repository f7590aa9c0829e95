"""How well `select` chooses among policies of independent families, on ten tasks of Gymnasium."""
