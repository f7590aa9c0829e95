"""Evaluation of methods, selection of candidates, and the evidence for both."""
