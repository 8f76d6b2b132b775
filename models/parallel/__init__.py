"""Training by several processes: who they are, what they send each other, and tables that are spread over them."""
