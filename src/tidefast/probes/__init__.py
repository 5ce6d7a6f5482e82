"""Looking inside a network: features, outputs, tokens, held statistics."""
