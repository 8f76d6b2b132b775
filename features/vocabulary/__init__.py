"""Ids: their layout, vocabularies of one column and of several together."""
