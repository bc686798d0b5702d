"""Many runs: a folder with a Parquet file per run and a row per cell, change points, and flaky cells.

pyarrow and ruptures, of the extra `history`, are imported when they are used.
"""
