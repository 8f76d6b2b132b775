"""Anyone's CSV or Parquet table, by YAML alone."""
