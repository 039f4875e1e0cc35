"""Where jobs run: one backend a module, behind the same abstract base."""
