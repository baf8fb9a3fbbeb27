"""What the tests' own machinery needs: class archives for quick JVMs, markers that are checked, lanes."""
