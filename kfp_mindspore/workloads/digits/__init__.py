"""The bundled pipelines' training code: LeNet-5 on scikit-learn's digits, an example of user code."""
