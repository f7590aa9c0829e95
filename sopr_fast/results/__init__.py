"""Results: rankings, estimates, metrics and warnings."""
