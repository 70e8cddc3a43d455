"""The `t5x` command and its runtime."""
