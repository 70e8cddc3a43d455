"""Units of work of large jobs, and the engines that do them: processes, Ray or Apache Beam."""
