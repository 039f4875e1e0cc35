"""The MSJob API: its fields, status, names and the CustomResourceDefinition generated from them."""
