"""Getting data that others publish: releases of OPUS, and the sets of the benchmarks.

Everything comes over HTTPS, goes on where it was interrupted, is checked, and is only then given
its name.
"""
