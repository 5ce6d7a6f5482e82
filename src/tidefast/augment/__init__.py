"""Augmentations of a batch of images in [0, 1]."""
