"""Names of configurable parameters for error messages."""

import sys


def parameter_name(configurable: str, parameter: str) -> str:
  """Returns `configurable.parameter`, with the macro bound to it in the current scope, if any.

  For example, `train.total_steps (TRAIN_STEPS)`. Does not import gin: without it there is no macro.
  """
  gin = sys.modules.get("gin")
  if gin is None:
    return f"{configurable}.{parameter}"
  scopes = gin.config.current_scope()
  for count in range(len(scopes), -1, -1):
    scope = "/".join(scopes[:count])
    for (bound_scope, selector), bindings in gin.config._CONFIG.items():
      if bound_scope == scope and f".{selector}".endswith(f".{configurable}"):
        value = bindings.get(parameter)
        if isinstance(value, gin.config.ConfigurableReference) and value.selector == "gin.macro":
          return f"{configurable}.{parameter} ({'/'.join(value.scopes)})"
  return f"{configurable}.{parameter}"
