"""What several methods use."""
