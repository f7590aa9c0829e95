"""Training, validation and test sets as in the paper: run `python -m bench.paper STAGE`, see README.md."""
