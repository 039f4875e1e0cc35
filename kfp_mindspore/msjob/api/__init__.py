"""The MSJob API: the fields, status, names and the CustomResourceDefinition generated from them."""
