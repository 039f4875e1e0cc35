"""Training code for the template `mindcv`: mindcv's networks by name, for folders of images."""
