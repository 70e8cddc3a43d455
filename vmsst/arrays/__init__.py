"""Arrays on devices: padding, sharding, matmuls, and the rates of devices."""
