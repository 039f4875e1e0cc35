"""Batches from arrays, dataset directories and mindspore.dataset objects, with their columns by name."""
