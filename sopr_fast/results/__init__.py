"""Results: rankings, estimates, metrics and warnings."""

from . import metrics as metrics
