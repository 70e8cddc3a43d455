"""Units of work of large jobs, and the engines that do them: processes or Ray."""
