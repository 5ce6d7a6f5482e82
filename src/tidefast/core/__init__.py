"""What an adapter is made of."""
