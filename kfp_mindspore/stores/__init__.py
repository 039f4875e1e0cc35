"""Object stores for artifacts and data: credentials, and one way to open a URI."""
