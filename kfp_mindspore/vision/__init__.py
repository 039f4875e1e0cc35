"""Models of images and of images with texts: published networks as bundles, classes by words."""
