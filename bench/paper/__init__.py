"""Makes the paper's training, validation and test sets: `python -m bench.paper STAGE`, see README.md."""
