"""Object stores of artifacts and data: credentials, and one way to open a URI."""
