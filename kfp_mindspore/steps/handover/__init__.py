"""Hand-over of data between a launcher step and the pods of its job."""
