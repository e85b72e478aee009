"""The other nodes of the cluster: their reports, read and checked, and what a rank may conclude from them."""
