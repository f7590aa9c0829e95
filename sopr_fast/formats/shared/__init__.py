"""Containers and layers that files of several programs have: zip archives, pickles, files of torch, perceptrons."""
