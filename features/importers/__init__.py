"""Fitted preprocessing of other libraries as ours, with the ids that their models were trained on.

Nothing here unpickles: what another library saved as a pickle is refused, with what can be done instead.
"""
