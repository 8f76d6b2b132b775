"""Sample order as a pure function of rows, seed and epoch; blocks, ranks, and how random an order is."""
