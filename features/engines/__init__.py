"""The two data frame libraries behind one interface, and the compiled loops that encode on a CPU."""
