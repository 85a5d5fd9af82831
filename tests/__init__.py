"""The tests of TandemQ. A package, so that `tests.spec` is this one and no other that happens to be installed."""
